-- Gives dead jobs a fresh run. The lock lets two redrives at once drive a job once. $1 the time, none for the server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), redriven AS (
  UPDATE redrive.jobs SET
    state = 0, run = run + 1, attempt = 0, next_run_at = clock.now, began_at = clock.now,
    wait_ms = NULL, reason = NULL, output = NULL, finished_at = NULL, cancel_requested = false
  FROM found, clock
  WHERE jobs.id = found.id AND found.state = 5
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, 5, -count(*) FROM found WHERE state = 5 GROUP BY lane
  UNION ALL
  SELECT lane, 0, count(*) FROM found WHERE state = 5 GROUP BY lane
)
SELECT id, state FROM found
