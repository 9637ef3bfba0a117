-- Removes dead jobs with their logs, steps and signals, and their unique keys unless these were promised for longer. $1 the
-- time, none for the server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), gone AS (
  DELETE FROM redrive.jobs USING found WHERE jobs.id = found.id AND found.state = 5
), log AS (
  DELETE FROM redrive.attempts USING found WHERE attempts.job = found.id AND found.state = 5
), steps AS (
  DELETE FROM redrive.steps USING found WHERE steps.job = found.id AND found.state = 5
), signals AS (
  DELETE FROM redrive.signals USING found WHERE signals.job = found.id AND found.state = 5
), released AS (
  DELETE FROM redrive.uniques USING found, clock
  WHERE uniques.job = found.id AND found.state = 5 AND (uniques.until IS NULL OR uniques.until <= clock.now)
), outlived AS (
  UPDATE redrive.uniques SET gone = true FROM found, clock
  WHERE uniques.job = found.id AND found.state = 5 AND uniques.until > clock.now
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 5, -count(*) FROM found WHERE state = 5 GROUP BY lane
)
SELECT id, state FROM found
