-- Removes dead jobs with their logs.
WITH found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), gone AS (
  DELETE FROM redrive.jobs USING found WHERE jobs.id = found.id AND found.state = 5
), log AS (
  DELETE FROM redrive.attempts USING found WHERE attempts.job = found.id AND found.state = 5
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 5, -count(*) FROM found WHERE state = 5 GROUP BY lane
)
SELECT id, state FROM found
