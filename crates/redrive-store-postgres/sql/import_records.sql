-- Writes records with their versions, unless there is one that is as new: versions only grow.
INSERT INTO redrive.records (kind, id, version, value)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) AS given (kind, id, version, value)
ORDER BY given.kind, given.id
ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, value = excluded.value
WHERE records.version < excluded.version
RETURNING kind, id
