-- The jobs that a caller names, locked in the order of their ids. $1 the time, none for the server's; $2 the call's tree; $3 the
-- jobs.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), found AS MATERIALIZED (
  SELECT id, lane, state, next_run_at, partition, strict, cancel_requested, has_children FROM redrive.jobs
  WHERE id = ANY ($3::uuid[])
  ORDER BY id
  FOR NO KEY UPDATE
), rest AS (
  SELECT false AS more
),
