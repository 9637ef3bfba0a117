-- Pastes.

-- name: insert_paste
-- Adds a paste. It waits for its blob, or is ready at once if the blob is stored already.
INSERT INTO pastes (code, blob, status, s3_url, owner_hash, created_at, expires_at)
SELECT ?1, id, CASE state WHEN 'stored' THEN 'PROCESSED' ELSE 'IN_PROGRESS' END, s3_url, ?3,
    {now},
    {now} + ?4 * 86400000
FROM blobs WHERE id = ?2
RETURNING status, expires_at;

-- name: code_taken
-- Whether a paste in any state has this code. A code is free again when its row is removed.
SELECT EXISTS (SELECT 1 FROM pastes WHERE code = ?1);

-- name: find_paste
-- Reads a paste that may be shown: one that has neither failed nor expired.
SELECT p.status, p.blob, b.sha256, b.size, p.created_at, p.expires_at, p.owner_hash
FROM pastes p JOIN blobs b ON b.id = p.blob
WHERE p.code = ?1 AND p.status <> 'FAILED' AND p.expires_at > {now};

-- name: delete_paste
-- Removes a paste of this owner, if it still has the blob that was read before.
DELETE FROM pastes WHERE code = ?1 AND blob = ?2 AND owner_hash = ?3;

-- name: end_pastes
-- Writes the end of an upload to every paste that waits for its blob.
UPDATE pastes SET status = ?2, s3_url = ?3 WHERE blob = ?1 AND status = 'IN_PROGRESS';
