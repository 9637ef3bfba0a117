-- A paste that may be shown; one that has failed or expired is as if it were not there.
SELECT p.status, p.blob, b.sha256, b.size, (extract(epoch FROM p.created_at) * 1000)::bigint,
    (extract(epoch FROM p.expires_at) * 1000)::bigint, p.owner_hash
FROM paste.pastes p JOIN paste.blobs b ON b.id = p.blob
WHERE p.code = $1 AND p.status <> 'FAILED' AND p.expires_at > now()
