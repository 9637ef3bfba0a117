-- A paste that may be shown; one that has failed or expired is as if it were not there.
SELECT p.status, p.blob, b.sha256, b.size, p.created_at, p.expires_at, p.owner_hash
FROM pastes p JOIN blobs b ON b.id = p.blob
WHERE p.code = ?1 AND p.status <> 'FAILED' AND p.expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER)
