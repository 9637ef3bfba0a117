-- Makes jobs due that wait for their time; their budget counts from now if they were not due yet. $1 the time, none for the
-- server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), hurried AS (
  UPDATE redrive.jobs SET
    next_run_at = least(jobs.next_run_at, clock.now), began_at = least(jobs.began_at, clock.now)
  FROM found, clock
  WHERE jobs.id = found.id AND found.state < 2
)
SELECT id, state FROM found
