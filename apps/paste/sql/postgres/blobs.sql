-- Blobs, which pastes with the same content share, and contents that wait for their upload.

-- name: live_blob
-- Finds the blob that new pastes with this content share: one that is uploading or stored. The lock keeps its state until the transaction ends.
-- Transactions that would end the upload or remove the blob wait until then.
SELECT id FROM paste.blobs WHERE sha256 = $1 AND state IN ('uploading', 'stored') FOR SHARE;

-- name: lock_blob
-- Reads the state of a blob, and locks it with its pastes until the transaction ends.
SELECT state FROM paste.blobs WHERE id = $1 FOR UPDATE;

-- name: blob_used
-- Whether any paste has this blob. It is a separate statement after the lock, because an earlier snapshot would miss a new paste.
SELECT EXISTS (SELECT 1 FROM paste.pastes WHERE blob = $1);

-- name: find_blob
-- Reads a blob in any state.
SELECT sha256, size FROM paste.blobs WHERE id = $1;

-- name: insert_blob
-- Adds a blob for a content, with an object name that no other blob has. Adds nothing if another node has just added one.
INSERT INTO paste.blobs (id, sha256, size, state) VALUES ($1, $2, $3, 'uploading') ON CONFLICT DO NOTHING RETURNING id;

-- name: end_blob
-- Ends an upload. Does nothing if the upload has already ended. Waits for transactions that add pastes to the blob.
UPDATE paste.blobs SET state = $2, s3_url = $3 WHERE id = $1 AND state = 'uploading';

-- name: condemn_blob
-- Marks a blob for removal. From then on no paste can share it.
UPDATE paste.blobs SET state = 'removing' WHERE id = $1;

-- name: forget_blob
-- Removes the row of a blob after its object. If a crash happens in between, the row remains and the removal continues.
DELETE FROM paste.blobs WHERE id = $1 AND state = 'removing';

-- name: insert_part
-- Adds a part of a content that waits for its upload.
INSERT INTO paste.contents (blob, part, bytes) VALUES ($1, $2, $3);

-- name: find_part
-- Reads a part of a content that waits for its upload.
SELECT bytes FROM paste.contents WHERE blob = $1 AND part = $2;

-- name: drop_content
-- Removes a content after its upload has ended, with success or not.
DELETE FROM paste.contents WHERE blob = $1;
