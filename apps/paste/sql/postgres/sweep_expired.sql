-- Pastes of a blob that have expired go, so many at most.
DELETE FROM paste.pastes WHERE code IN (
    SELECT code FROM paste.pastes WHERE blob = $1 AND expires_at <= now() LIMIT $2
)
