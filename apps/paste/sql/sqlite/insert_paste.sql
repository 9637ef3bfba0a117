-- A paste waits for its blob, or is ready at once where that is stored already.
INSERT INTO pastes (code, blob, status, s3_url, owner_hash, created_at, expires_at)
SELECT ?1, id, CASE state WHEN 'stored' THEN 'PROCESSED' ELSE 'IN_PROGRESS' END, s3_url, ?3,
    CAST(unixepoch('subsec') * 1000 AS INTEGER),
    CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?4 * 86400000
FROM blobs WHERE id = ?2
RETURNING status, expires_at
