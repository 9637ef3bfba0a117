-- Takes the oldest signal by a name as a step, once, unless a step is remembered there. The job's row must be locked by this
-- transaction, so that nobody else takes signals of it.
WITH oldest AS MATERIALIZED (
  SELECT id, value FROM redrive.signals
  WHERE job = $1::uuid AND name = $5::text AND NOT taken
    AND NOT EXISTS (SELECT FROM redrive.steps WHERE steps.job = $1::uuid AND steps.place = $2::bigint)
  ORDER BY seq
  LIMIT 1
), taken AS (
  UPDATE redrive.signals SET taken = true FROM oldest WHERE signals.job = $1::uuid AND signals.id = oldest.id
)
INSERT INTO redrive.steps (job, place, kind, name, value)
SELECT $1::uuid, $2::bigint, $3::smallint, $4::text, value FROM oldest
RETURNING value
