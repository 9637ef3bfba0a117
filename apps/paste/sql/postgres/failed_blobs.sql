-- Blobs of pastes that failed more than a day ago, some at a time, in the order in which sweepers lock them.
SELECT DISTINCT blob FROM (
    SELECT blob FROM paste.pastes WHERE status = 'FAILED' AND created_at <= now() - interval '24 hours'
    ORDER BY created_at LIMIT $1
) AS stale ORDER BY blob
