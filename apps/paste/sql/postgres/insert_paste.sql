-- A paste waits for its blob, which may come later in the transaction; none where its code is taken.
INSERT INTO paste.pastes (code, blob, status, owner_hash, created_at, expires_at)
VALUES ($1, $2, 'IN_PROGRESS', $3, now(), now() + make_interval(days => $4))
ON CONFLICT (code) DO NOTHING
RETURNING (extract(epoch FROM expires_at) * 1000)::bigint
