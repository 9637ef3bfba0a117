-- Those of the given jobs that wait for something. $1 the time, none for the server's; $2 the jobs.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), awaiting AS MATERIALIZED (
  SELECT
    id, epoch, held, awaits, awaits_name, awaits_branch, awaits_failures, state, next_run_at, partition, strict, parent
  FROM redrive.jobs
  WHERE id = ANY ($2::uuid[]) AND awaits IS NOT NULL
), marks AS (
  SELECT NULL::bigint AS tree
),
