-- Writes or removes a record; the version only grows.
INSERT INTO redrive_records (kind, id, version, value) VALUES (?1, ?2, 1, ?3)
ON CONFLICT (kind, id) DO UPDATE SET version = version + 1, value = excluded.value
RETURNING version
