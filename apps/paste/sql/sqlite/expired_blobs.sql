-- Blobs of pastes that have expired, some at a time.
SELECT DISTINCT blob FROM (
    SELECT blob FROM pastes WHERE expires_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)
    ORDER BY expires_at LIMIT ?1
)
