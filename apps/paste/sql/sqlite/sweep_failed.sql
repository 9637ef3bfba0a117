-- Pastes of a blob that failed more than a day ago go, so many at most.
DELETE FROM pastes WHERE code IN (
    SELECT code FROM pastes
    WHERE blob = ?1 AND status = 'FAILED'
        AND created_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) - 86400000 LIMIT ?2
)
