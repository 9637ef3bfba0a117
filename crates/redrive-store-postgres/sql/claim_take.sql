-- Writes what was decided about jobs that this transaction holds: leases some ($2) and charges each an attempt, sets some ($5)
-- aside until it is their turn, puts some ($6) off, and notes the starts that rates count. $1 the time; $3 the worker, $4 its
-- lease; $7 until when; $8, $9 starts; $10 to $12 lanes and states that jobs came from and whether they were leased.
WITH claimed AS (
  UPDATE redrive.jobs
  SET state = 2, attempt = attempt + 1, epoch = epoch + 1, started_at = $1::bigint,
    lease_until = $1::bigint + coalesce(lease_ms, $4::bigint), worker = $3::text, awaits = NULL
  WHERE jobs.id = ANY ($2::uuid[])
  RETURNING
    jobs.id, jobs.lane, jobs.state, jobs.next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until,
    finished_at, wait_ms, timeout_ms, lease_ms, cancel_requested, last_status, tenant, policy, worker, key, reason,
    subject, last_error, metadata, payload, output, parent, branch, awaits, awaits_name, awaits_branch,
    awaits_failures, held, partition, strict, detached
), aside AS (
  UPDATE redrive.jobs SET state = 3, awaits = 3 WHERE jobs.id = ANY ($5::uuid[])
), off AS (
  UPDATE redrive.jobs SET next_run_at = off.at FROM unnest($6::uuid[], $7::bigint[]) AS off (id, at) WHERE jobs.id = off.id
), started AS (
  INSERT INTO redrive.starts (at, scope, jobs) SELECT $1::bigint, * FROM unnest($8::text[], $9::bigint[])
), moved AS MATERIALIZED (
  SELECT * FROM unnest($10::integer[], $11::smallint[], $12::boolean[]) AS moved (lane, state, leased)
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM moved GROUP BY lane, state
  UNION ALL
  SELECT lane, CASE WHEN leased THEN 2 ELSE 3 END, count(*) FROM moved GROUP BY lane, leased
)
SELECT * FROM claimed
