-- The next children of fan-outs that end with them, locked in the order of their ids. $1 the time, none for the server's; $2 the
-- call's tree; $3, $4 parents and branches; $5 how many at most. `more` says whether there may be others.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), below AS MATERIALIZED (
  SELECT children.id FROM unnest($3::uuid[], $4::integer[]) AS branches (parent, branch)
  CROSS JOIN LATERAL (
    SELECT jobs.id FROM redrive.jobs
    WHERE jobs.parent = branches.parent AND jobs.branch = branches.branch AND jobs.state < 4
      AND NOT jobs.detached AND NOT jobs.cancel_requested
    LIMIT $5::bigint
  ) AS children
  LIMIT $5::bigint
), found AS MATERIALIZED (
  SELECT id, lane, state, next_run_at, partition, strict, cancel_requested, has_children FROM redrive.jobs
  WHERE id = ANY (ARRAY(SELECT id FROM below)) AND state < 4 AND NOT cancel_requested
  ORDER BY id
  FOR NO KEY UPDATE
), rest AS (
  SELECT count(*) >= $5::bigint AS more FROM below
),
