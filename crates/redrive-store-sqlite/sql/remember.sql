-- Remembers a step unless one is remembered at its place.
INSERT INTO redrive_steps (job, place, kind, name, value) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING
