-- Takes over leases that have run out, longest ago first: the new epoch shuts the old holder out; no attempt is charged. The
-- name of the lost worker stays: the settlement logs it.
-- Nothing is taken over from a sealed store, and no lease that the caller holds.
-- $1 the time, none for the server's; $2 kinds, empty for all; $3 how many at most; $4 where the live part begins;
-- $5 how long the new lease lasts; $6 and $7 the leases that the caller holds. `passed` says whether one of them has run out;
-- it is false where more are left than were asked for, because then there is another look anyway.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), expired AS MATERIALIZED (
  SELECT jobs.ctid AS place, jobs.lease_until AS ended FROM redrive.jobs
  WHERE jobs.state = 2 AND jobs.lease_until <= (SELECT now FROM clock) AND jobs.lease_until >= $4::bigint
    AND (
      cardinality($2::text[]) = 0
      OR jobs.lane = ANY (ARRAY(SELECT lanes.lane FROM redrive.lanes WHERE lanes.kind = ANY ($2::text[])))
    )
    AND NOT EXISTS (SELECT FROM redrive.records WHERE records.kind = 'sealed' AND records.value IS NOT NULL)
    AND (jobs.id, jobs.epoch) NOT IN (SELECT * FROM unnest($6::uuid[], $7::bigint[]))
  ORDER BY jobs.lease_until, jobs.id
  LIMIT $3::bigint
  FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE redrive.jobs SET epoch = epoch + 1, lease_until = clock.now + $5::bigint
  FROM expired, clock
  WHERE jobs.ctid = expired.place
  RETURNING
    jobs.id, jobs.lane, jobs.state, jobs.next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until,
    finished_at, wait_ms, timeout_ms, lease_ms, cancel_requested, last_status, tenant, policy, worker, key, reason,
    subject, last_error, metadata, payload, output, parent, branch, awaits, awaits_name, awaits_branch,
    awaits_failures, held, partition, strict, detached, expired.ended
)
SELECT taken.*, clock.now,
  CASE
    WHEN cardinality($6::uuid[]) = 0 OR (SELECT count(*) FROM expired) = $3::bigint THEN false
    ELSE coalesce((
      SELECT bool_or((late.id, late.epoch) IN (SELECT * FROM unnest($6::uuid[], $7::bigint[]))) FROM (
        SELECT jobs.id, jobs.epoch FROM redrive.jobs
        WHERE jobs.state = 2 AND jobs.lease_until <= (SELECT now FROM clock) AND jobs.lease_until >= $4::bigint
        ORDER BY jobs.lease_until
        LIMIT $3::bigint + cardinality($6::uuid[])
      ) AS late
    ), false)
  END AS passed
FROM clock LEFT JOIN taken ON true
