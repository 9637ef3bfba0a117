-- Ends jobs that no worker holds; asks for the end of those that are running, whose workers hear of it when they extend or
-- settle. $1 the time, none for the server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), cancelled AS (
  UPDATE redrive.jobs SET
    state = CASE WHEN found.state = 2 THEN 2 ELSE 6 END,
    finished_at = CASE WHEN found.state = 2 THEN NULL ELSE clock.now END,
    cancel_requested = jobs.cancel_requested OR found.state = 2
  FROM found, clock
  WHERE jobs.id = found.id AND found.state < 4
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM found WHERE state IN (0, 1, 3) GROUP BY lane, state
  UNION ALL
  SELECT lane, 6, count(*) FROM found WHERE state IN (0, 1, 3) GROUP BY lane
)
SELECT id, state FROM found
