-- The next jobs that wait for something, in the order of their ids, and a tree that still has marks, if there is one. $1 the time, none for the server's; $2 the job to go on
-- after, if any; $3 how many at most.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), awaiting AS MATERIALIZED (
  SELECT
    id, epoch, held, awaits, awaits_name, awaits_branch, awaits_failures, state, next_run_at, partition, strict, parent
  FROM redrive.jobs
  WHERE awaits IS NOT NULL AND ($2::uuid IS NULL OR id > $2::uuid)
  ORDER BY id
  LIMIT $3::bigint
), marks AS (
  SELECT (SELECT tree FROM redrive.closing LIMIT 1) AS tree
),
