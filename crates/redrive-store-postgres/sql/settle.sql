-- Applies verdicts. The epoch shuts out a worker whose lease was reclaimed meanwhile. The log entry, the follow-ups and the
-- counts are written with what they explain, for those leases alone that still held. A job that ends as dead or cancelled and may
-- have children is marked for them, see cancel.sql; $48 the call's tree.
-- $1 the time, none for the server's; $2 how far ahead a follow-up is too far; $3 the latest instant that any follow-up is due
-- at: one that is too far ahead refuses them all. Where settlements are to be applied one after the other ($49), nothing is
-- applied if one of them ends live children, because that may change what another does; `tangled` lists such jobs.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    $4::uuid[], $5::bigint[], $6::smallint[], $7::smallint[], $8::bigint[], $9::integer[], $10::bigint[], $11::text[],
    $12::integer[], $13::text[], $14::bytea[], $15::smallint[], $16::text[], $17::integer[], $18::bigint[]
  ) AS given (
    id, epoch, state, state_if_cancelling, wait_ms, refund, budget_pause, error, status, reason, output, awaits,
    awaits_name, awaits_branch, awaits_failures
  )
), entries AS MATERIALIZED (
  SELECT * FROM unnest(
    $19::uuid[], $20::bigint[], $21::integer[], $22::integer[], $23::bigint[], $24::bigint[], $25::text[], $26::text[],
    $27::text[]
  ) AS entries (job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail)
), follow_ups AS MATERIALIZED (
  SELECT * FROM unnest(
    $28::uuid[], $29::bigint[], $30::uuid[], $31::integer[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[],
    $36::text[], $37::text[], $38::text[], $39::bytea[], $40::text[], $41::text[], $42::bytea[], $43::uuid[],
    $44::integer[], $45::text[], $46::boolean[], $47::boolean[]
  ) AS follow_ups (
    follows, epoch, id, lane, at, after, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject, metadata, payload,
    parent, branch, partition, strict, detached
  )
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), tangled AS MATERIALIZED (
  SELECT jobs.id FROM given JOIN redrive.jobs ON jobs.id = given.id AND jobs.epoch = given.epoch
  WHERE $49::boolean AND jobs.state::integer = 2
    AND CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END > 4
    AND coalesce((
      SELECT true FROM redrive.jobs AS below
      WHERE below.parent = jobs.id AND below.state < 4 AND NOT below.detached AND NOT below.cancel_requested
      LIMIT 1
    ), false)
), settled AS (
  -- What would go on is cancelled when that was asked for meanwhile; what has ended stays.
  UPDATE redrive.jobs SET
    state = CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END,
    finished_at = CASE WHEN CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END > 3 THEN clock.now END,
    lease_until = NULL,
    next_run_at = CASE WHEN CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END < 4
      THEN clock.now + coalesce(given.wait_ms, 0) ELSE jobs.next_run_at END,
    -- Only a wait between two attempts counts for decorrelated jitter; a snooze is no such wait.
    wait_ms = CASE WHEN CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END = 1
      THEN coalesce(given.wait_ms, jobs.wait_ms) ELSE jobs.wait_ms END,
    attempt = jobs.attempt - given.refund,
    began_at = jobs.began_at + given.budget_pause,
    last_error = coalesce(given.error, jobs.last_error),
    last_status = coalesce(given.status, jobs.last_status),
    output = coalesce(given.output, jobs.output),
    reason = given.reason,
    awaits = CASE WHEN CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END < 4
      THEN given.awaits END,
    awaits_name = given.awaits_name,
    awaits_branch = given.awaits_branch,
    awaits_failures = given.awaits_failures
  FROM clock, given
  WHERE jobs.id = given.id AND jobs.epoch = given.epoch AND jobs.state::integer = 2
    AND NOT EXISTS (SELECT FROM late) AND NOT EXISTS (SELECT FROM tangled)
  RETURNING
    jobs.id, jobs.epoch, jobs.state, jobs.lane, jobs.worker, CASE WHEN jobs.state < 2 THEN given.wait_ms END AS wait_ms,
    jobs.partition, jobs.strict, jobs.state < 2 AND jobs.next_run_at <= clock.now AS due, jobs.has_children
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
    metadata, payload, parent, branch, partition, strict, detached
  )
  SELECT
    follow_ups.id, follow_ups.lane, coalesce(at, now + after), coalesce(at, now + after), now, timeout_ms, lease_ms, tenant,
    policy, key, fingerprint, subject, metadata, payload, parent, branch, follow_ups.partition,
    follow_ups.strict, follow_ups.detached
  FROM clock, follow_ups JOIN settled ON settled.id = follow_ups.follows AND settled.epoch = follow_ups.epoch
  ON CONFLICT DO NOTHING
  RETURNING id, lane, partition
), marked AS (
  INSERT INTO redrive.closing (tree, job)
  SELECT $48::bigint, settled.id FROM settled
  WHERE settled.state > 4 AND (
    settled.has_children
    OR coalesce((SELECT true FROM redrive.jobs WHERE jobs.parent = settled.id AND jobs.state < 4 LIMIT 1), false)
  )
  RETURNING mark
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, 2, -count(*) FROM settled GROUP BY lane
  UNION ALL
  SELECT lane, state, count(*) FROM settled GROUP BY lane, state
  UNION ALL
  SELECT lane, 0, count(*) FROM followed GROUP BY lane
)
SELECT
  EXISTS (SELECT FROM late) AS late, settled.id, settled.epoch, settled.state, settled.lane, settled.partition, settled.strict,
  settled.due, EXISTS (SELECT FROM marked) AS marked, (SELECT array_agg(tangled.id) FROM tangled) AS tangled,
  (SELECT array_agg(followed.id) FROM followed WHERE followed.partition IS NOT NULL) AS followed
FROM clock LEFT JOIN settled ON true
