-- Holds jobs that have not ended; those that wait for their time and for nothing else are set aside at once.
WITH found AS MATERIALIZED (
  SELECT id, lane, state, state < 2 AND awaits IS NULL AS aside FROM redrive.jobs
  WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), held AS (
  UPDATE redrive.jobs SET
    held = true,
    state = CASE WHEN found.aside THEN 3 ELSE jobs.state END,
    awaits = CASE WHEN found.aside THEN 2 ELSE jobs.awaits END
  FROM found
  WHERE jobs.id = found.id AND found.state < 4
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM found WHERE aside GROUP BY lane, state
  UNION ALL
  SELECT lane, 3, count(*) FROM found WHERE aside GROUP BY lane
)
SELECT id, CASE WHEN aside THEN 3::smallint ELSE state END AS state FROM found
