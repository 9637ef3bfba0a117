-- Takes a signal ($6) with a step, once, unless a step is remembered there. The job's row must be locked by this transaction, so
-- that nobody else takes signals of it. What the signal said is in the step ($5) from now on.
WITH taken AS (
  UPDATE redrive.signals SET taken = true, value = ''
  WHERE job = $1::uuid AND id = $6::uuid AND NOT taken
    AND NOT EXISTS (SELECT FROM redrive.steps WHERE steps.job = $1::uuid AND steps.place = $2::bigint)
  RETURNING id
)
INSERT INTO redrive.steps (job, place, kind, name, value)
SELECT $1::uuid, $2::bigint, $3::smallint, $4::text, $5::bytea FROM taken
RETURNING place
