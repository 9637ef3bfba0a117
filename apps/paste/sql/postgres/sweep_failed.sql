-- Pastes of a blob that failed more than a day ago go, so many at most.
DELETE FROM paste.pastes WHERE code IN (
    SELECT code FROM paste.pastes
    WHERE blob = $1 AND status = 'FAILED' AND created_at <= now() - interval '24 hours' LIMIT $2
)
