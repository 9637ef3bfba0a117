-- A job's signals by any of these names ($2) that no step has taken, in the order of their arrival, at most $3.
SELECT id, name, value FROM redrive.signals
WHERE job = $1::uuid AND name = ANY ($2::text[]) AND NOT taken
ORDER BY seq
LIMIT $3::bigint
