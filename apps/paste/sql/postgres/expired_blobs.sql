-- Blobs of pastes that have expired, some at a time, in the order in which sweepers lock them.
SELECT DISTINCT blob FROM (
    SELECT blob FROM paste.pastes WHERE expires_at <= now() ORDER BY expires_at LIMIT $1
) AS stale ORDER BY blob
