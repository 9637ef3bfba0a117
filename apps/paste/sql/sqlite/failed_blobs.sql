-- Blobs of pastes that failed more than a day ago, some at a time.
SELECT DISTINCT blob FROM (
    SELECT blob FROM pastes
    WHERE status = 'FAILED' AND created_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) - 86400000
    ORDER BY created_at LIMIT ?1
)
