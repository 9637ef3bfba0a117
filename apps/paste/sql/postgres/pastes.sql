-- Pastes.

-- name: insert_paste
-- Adds a paste that waits for its blob, which may be added later in the transaction. Returns no row if the code is taken.
INSERT INTO paste.pastes (code, blob, status, owner_hash, created_at, expires_at)
VALUES ($1, $2, 'IN_PROGRESS', $3, now(), now() + make_interval(days => $4))
ON CONFLICT (code) DO NOTHING
RETURNING (extract(epoch FROM expires_at) * 1000)::bigint;

-- name: find_paste
-- Reads a paste that may be shown: one that has neither failed nor expired.
SELECT p.status, p.blob, b.sha256, b.size, (extract(epoch FROM p.created_at) * 1000)::bigint,
    (extract(epoch FROM p.expires_at) * 1000)::bigint, p.owner_hash
FROM paste.pastes p JOIN paste.blobs b ON b.id = p.blob
WHERE p.code = $1 AND p.status <> 'FAILED' AND p.expires_at > now();

-- name: delete_paste
-- Removes a paste of this owner, if it still has the blob that was read before.
DELETE FROM paste.pastes WHERE code = $1 AND blob = $2 AND owner_hash = $3;

-- name: join_blob
-- Gives a new paste an existing blob. The paste is ready at once if the blob is stored already.
UPDATE paste.pastes SET blob = b.id, s3_url = b.s3_url,
    status = CASE b.state WHEN 'stored' THEN 'PROCESSED' ELSE 'IN_PROGRESS' END
FROM paste.blobs b WHERE code = $1 AND b.id = $2
RETURNING status;

-- name: end_pastes
-- Writes the end of an upload to every paste that waits for its blob.
UPDATE paste.pastes SET status = $2, s3_url = $3 WHERE blob = $1 AND status = 'IN_PROGRESS';
