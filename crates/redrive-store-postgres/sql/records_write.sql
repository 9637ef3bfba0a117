-- Writes or removes a record if it is as expected; the version only grows. $4 says whether there must be none, $5 which
-- version there must be.
INSERT INTO redrive.records (kind, id, version, value)
SELECT $1::text, $2::text, 1, $3::bytea
WHERE $5::bigint IS NULL OR EXISTS (SELECT FROM redrive.records WHERE kind = $1::text AND id = $2::text)
ON CONFLICT (kind, id) DO UPDATE SET version = records.version + 1, value = excluded.value
WHERE ($4::boolean AND records.value IS NULL)
  OR ($5::bigint IS NOT NULL AND records.value IS NOT NULL AND records.version = $5::bigint)
  OR (NOT $4::boolean AND $5::bigint IS NULL)
RETURNING version
