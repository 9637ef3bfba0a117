-- Pastes of a blob that have expired go, so many at most.
DELETE FROM pastes WHERE code IN (
    SELECT code FROM pastes
    WHERE blob = ?1 AND expires_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) LIMIT ?2
)
