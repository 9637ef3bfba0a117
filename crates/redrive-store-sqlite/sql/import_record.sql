-- Writes a record with its version, unless there is one that is as new: versions only grow.
INSERT INTO redrive_records (kind, id, version, value) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, value = excluded.value WHERE version < excluded.version
