-- Removes dead jobs with their logs, steps and signals, and their unique keys unless these were promised for longer. $1 the
-- time, none for the server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), gone AS (
  DELETE FROM redrive.jobs USING found WHERE jobs.id = found.id AND found.state = 5
), log AS (
  -- Arrays keep the planner at the indexes when it knows nothing of a table.
  DELETE FROM redrive.attempts WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
), steps AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
), signals AS (
  DELETE FROM redrive.signals WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
), released AS (
  DELETE FROM redrive.uniques USING clock
  WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5)) AND (until IS NULL OR until <= clock.now)
), outlived AS (
  UPDATE redrive.uniques SET gone = true FROM clock
  WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5)) AND until > clock.now
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 5, -count(*) FROM found WHERE state = 5 GROUP BY lane
)
SELECT id, state FROM found
