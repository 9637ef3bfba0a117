-- Applies verdicts. The epoch shuts out a worker whose lease was reclaimed meanwhile. The log entry, the follow-ups and the
-- counts are written with what they explain, for those leases alone that still held.
-- $1 the time, none for the server's; $2 how far ahead a follow-up is too far; one that is refuses them all.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    $3::uuid[], $4::bigint[], $5::smallint[], $6::smallint[], $7::bigint[], $8::integer[], $9::bigint[], $10::text[],
    $11::integer[], $12::text[], $13::bytea[]
  ) AS given (id, epoch, state, state_if_cancelling, wait_ms, refund, budget_pause, error, status, reason, output)
), entries AS MATERIALIZED (
  SELECT * FROM unnest(
    $14::uuid[], $15::bigint[], $16::integer[], $17::integer[], $18::bigint[], $19::bigint[], $20::text[], $21::text[],
    $22::text[]
  ) AS entries (job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail)
), follow_ups AS MATERIALIZED (
  SELECT * FROM unnest(
    $23::uuid[], $24::bigint[], $25::uuid[], $26::integer[], $27::bigint[], $28::bigint[], $29::bigint[], $30::bigint[],
    $31::text[], $32::text[], $33::text[], $34::bytea[], $35::text[], $36::text[], $37::bytea[]
  ) AS follow_ups (
    parent, epoch, id, lane, at, after, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject, metadata, payload
  )
), late AS (
  SELECT FROM follow_ups, clock WHERE follow_ups.at > clock.now + $2::bigint LIMIT 1
), settled AS (
  -- What would go on is cancelled when that was asked for meanwhile; what has ended stays.
  UPDATE redrive.jobs SET
    state = CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END,
    finished_at = CASE WHEN CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END > 3 THEN clock.now END,
    lease_until = NULL,
    next_run_at = CASE WHEN CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END < 2
      THEN coalesce(clock.now + given.wait_ms, jobs.next_run_at) ELSE jobs.next_run_at END,
    -- Only a wait between two attempts counts for decorrelated jitter; a snooze is no such wait.
    wait_ms = CASE WHEN CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END = 1
      THEN coalesce(given.wait_ms, jobs.wait_ms) ELSE jobs.wait_ms END,
    attempt = jobs.attempt - given.refund,
    began_at = jobs.began_at + given.budget_pause,
    last_error = coalesce(given.error, jobs.last_error),
    last_status = coalesce(given.status, jobs.last_status),
    output = coalesce(given.output, jobs.output),
    reason = given.reason
  FROM clock, given
  WHERE jobs.id = given.id AND jobs.epoch = given.epoch AND jobs.state::integer = 2 AND NOT EXISTS (SELECT FROM late)
  RETURNING jobs.id, jobs.epoch, jobs.state, jobs.lane, jobs.worker, CASE WHEN jobs.state < 2 THEN given.wait_ms END AS wait_ms
), logged AS (
  INSERT INTO redrive.attempts (
    job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at
  )
  SELECT
    job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, state, wait_ms, now + wait_ms
  FROM clock, entries JOIN settled USING (epoch)
  WHERE settled.id = entries.job
), followed AS (
  INSERT INTO redrive.jobs (
    id, lane, next_run_at, began_at, created_at, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject,
    metadata, payload
  )
  SELECT
    follow_ups.id, follow_ups.lane, coalesce(at, now + after), coalesce(at, now + after), now, timeout_ms, lease_ms, tenant,
    policy, key, fingerprint, subject, metadata, payload
  FROM clock, follow_ups JOIN settled ON settled.id = follow_ups.parent AND settled.epoch = follow_ups.epoch
  ON CONFLICT DO NOTHING
  RETURNING lane
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, 2, -count(*) FROM settled GROUP BY lane
  UNION ALL
  SELECT lane, state, count(*) FROM settled GROUP BY lane, state
  UNION ALL
  SELECT lane, 0, count(*) FROM followed GROUP BY lane
)
SELECT EXISTS (SELECT FROM late) AS late, settled.id, settled.epoch, settled.state
FROM clock LEFT JOIN settled ON true
