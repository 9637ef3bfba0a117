-- The life of a job: enqueue, claim, settle, extend, reclaim.
--
-- $1 is the current time in every statement that uses {now} or {clock}: NULL for the server's clock. Statements that write
-- under a lease compare the state as an integer, so that the planner does not use the index of leases, which may be full of
-- dead entries that the planner does not know of.

-- fragment: new_job_arguments
-- The columns of a job as callers pass them. A job is due `at` a time, or else `after` a time from now.
id, lane, at, after, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject, metadata, payload, parent, branch,
    partition, strict, detached

-- fragment: insert_new_jobs
-- Inserts new jobs. The statement continues with the rows, under the name new_jobs, and with ON CONFLICT DO NOTHING.
INSERT INTO redrive.jobs (
    id, lane, next_run_at, began_at, created_at, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject,
    metadata, payload, parent, branch, partition, strict, detached
  )
  SELECT
    new_jobs.id, new_jobs.lane, coalesce(at, now + after), coalesce(at, now + after), now, timeout_ms, lease_ms, tenant,
    policy, key, fingerprint, subject, metadata, payload, parent, branch, new_jobs.partition, new_jobs.strict, new_jobs.detached

-- name: enqueue
-- Adds jobs. A job whose id, or tenant and idempotency key, exists already is left out, so that a repeated enqueue changes nothing.
-- If one job is due too far ahead, none is added. $2 the horizon; $3 the latest due time in the call; $4 the number of jobs; $5 to $22
-- their columns.
WITH {clock}, given AS MATERIALIZED (
  SELECT * FROM unnest(
    $5::uuid[], $6::integer[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::text[],
    $13::text[], $14::bytea[], $15::text[], $16::text[], $17::bytea[], $18::uuid[], $19::integer[],
    $20::text[], $21::boolean[], $22::boolean[]
  ) AS given ({new_job_arguments})
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), added AS (
  {insert_new_jobs}
  FROM given AS new_jobs, clock
  WHERE NOT EXISTS (SELECT FROM late)
  ON CONFLICT DO NOTHING
  RETURNING id, lane
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 0, count(*) FROM added GROUP BY lane
)
SELECT EXISTS (SELECT FROM late) AS late, count(*) AS added, CASE WHEN count(*) < $4::bigint THEN array_agg(id) END AS ids
FROM added;

-- name: find_existing
-- Finds the jobs that kept others from being added: the same job from an earlier try, or the holder of the key.
-- $1 ids; $2 tenants; $3 keys.
SELECT given.place, by_id.id AS by_id, by_key.id AS by_key, by_key.fingerprint
FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS given (id, tenant, key, place)
LEFT JOIN redrive.jobs by_id ON by_id.id = given.id
LEFT JOIN redrive.jobs by_key ON by_key.tenant = given.tenant AND by_key.key = given.key;

-- name: enqueue_unique
-- Adds jobs with unique keys, each by its rule. Of several concurrent enqueues with the same key, one gets the key. If the
-- holder changed between the read and the write, the job is not added and its answer is empty: the caller tries again. $2 the horizon;
-- $3 the latest due time in the call; $4 to $25 the columns. Rules: 0 while the holder lives, 1 for a time, 2 replace the holder
-- unless it has started.
WITH {clock}, given AS MATERIALIZED (
  SELECT * FROM unnest(
    $4::uuid[], $5::integer[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::text[],
    $12::text[], $13::bytea[], $14::text[], $15::text[], $16::bytea[], $17::uuid[], $18::integer[], $19::text[],
    $20::boolean[], $21::boolean[], $22::text[], $23::text[], $24::smallint[], $25::bigint[]
  ) WITH ORDINALITY AS given ({new_job_arguments}, kind, unique_key, rule, for_ms, place)
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), seen AS MATERIALIZED (
  -- The key and its job are read in one snapshot. If a key has no job, the job was removed.
  SELECT
    given.place, given.tenant, given.kind, given.unique_key, uniques.job AS holder, same.id IS NOT NULL AS known,
    CASE given.rule
      WHEN 0 THEN coalesce(held.state < 4, false)
      WHEN 1 THEN coalesce(uniques.until > clock.now, held.state < 4, false)
      ELSE false
    END AS blocked,
    coalesce(given.rule = 2 AND held.state = 0 AND held.epoch = 0, false) AS replaceable
  FROM clock, given
  LEFT JOIN redrive.jobs AS same ON same.id = given.id
  LEFT JOIN redrive.uniques
    ON uniques.tenant = given.tenant AND uniques.kind = given.kind AND uniques.key = given.unique_key
  LEFT JOIN redrive.jobs AS held ON held.id = uniques.job
), taken AS (
  INSERT INTO redrive.uniques (tenant, kind, key, job, until)
  SELECT given.tenant, given.kind, given.unique_key, given.id, clock.now + given.for_ms
  FROM clock, seen JOIN given USING (place)
  WHERE NOT (seen.known OR seen.blocked OR seen.replaceable) AND NOT EXISTS (SELECT FROM late)
  ORDER BY given.tenant, given.kind, given.unique_key
  ON CONFLICT (tenant, kind, key) DO UPDATE SET job = excluded.job, until = excluded.until, gone = false
  WHERE uniques.job = (
    SELECT seen.holder FROM seen
    WHERE seen.tenant = excluded.tenant AND seen.kind = excluded.kind AND seen.unique_key = excluded.key
  )
  RETURNING job
), added AS (
  {insert_new_jobs}
  FROM clock, given AS new_jobs JOIN taken ON taken.job = new_jobs.id
  ON CONFLICT DO NOTHING
  RETURNING id, lane
), replaceable AS MATERIALIZED (
  SELECT jobs.id, seen.place FROM redrive.jobs JOIN seen ON seen.holder = jobs.id
  WHERE seen.replaceable AND NOT seen.known AND jobs.state = 0 AND jobs.epoch = 0 AND NOT EXISTS (SELECT FROM late)
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), replaced AS (
  UPDATE redrive.jobs SET
    policy = given.policy, payload = given.payload, subject = given.subject, metadata = given.metadata,
    timeout_ms = given.timeout_ms, lease_ms = given.lease_ms,
    next_run_at = coalesce(given.at, clock.now + given.after), began_at = coalesce(given.at, clock.now + given.after)
  FROM clock, replaceable JOIN given USING (place)
  WHERE jobs.id = replaceable.id
  RETURNING given.place
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 0, count(*) FROM added GROUP BY lane
)
SELECT
  EXISTS (SELECT FROM late) AS late, given.place, added.id AS created,
  CASE WHEN seen.known THEN given.id WHEN seen.blocked THEN seen.holder END AS existing,
  CASE WHEN replaced.place IS NOT NULL THEN seen.holder END AS replaced
FROM given
JOIN seen USING (place)
LEFT JOIN added ON added.id = given.id
LEFT JOIN replaced USING (place);

-- name: add_lane
-- Gives a lane its number, the same for all nodes, and notes whether the lane has jobs with partition keys. $1 queue; $2 kind;
-- $3 priority; $4 whether the job has a partition key. Returns no row if another node adds the lane at the same moment.
WITH added AS (
  INSERT INTO redrive.lanes (queue, kind, priority, partitioned) VALUES ($1, $2, $3, $4)
  ON CONFLICT (queue, kind, priority) DO UPDATE SET partitioned = true WHERE excluded.partitioned AND NOT lanes.partitioned
  RETURNING lane
)
SELECT lane FROM added
UNION ALL
SELECT lane FROM redrive.lanes WHERE queue = $1 AND kind = $2 AND priority = $3
LIMIT 1;

-- name: list_lanes
-- Lists every lane that has ever had a job.
SELECT lane, queue, kind, priority, partitioned FROM redrive.lanes;

-- fragment: lanes_to_claim
-- The lanes that a claim reads, highest priority first, each with the position where the scan starts. $2 and $3 queues and
-- kinds, empty for all; $4 the maximum number of jobs to claim; $5 to $7 lanes with their positions. A lane is limited if its queue
-- has limits or its jobs have partition keys.
wanted AS MATERIALIZED (
  SELECT lanes.lane, lanes.priority, coalesce(positions.at, -9223372036854775808) AS from_at,
    coalesce(positions.id, '00000000-0000-0000-0000-000000000000') AS from_id, $4::bigint AS most,
    lanes.partitioned
      OR lanes.queue IN (SELECT records.id FROM redrive.records WHERE records.kind = 'quota' AND records.value IS NOT NULL)
      AS limited
  FROM redrive.lanes
  LEFT JOIN unnest($5::integer[], $6::bigint[], $7::uuid[]) AS positions (lane, at, id) USING (lane)
  WHERE (cardinality($2::text[]) = 0 OR lanes.queue = ANY ($2::text[]))
    AND (cardinality($3::text[]) = 0 OR lanes.kind = ANY ($3::text[]))
    AND {lane_is_claimable}
  ORDER BY lanes.priority DESC
)

-- fragment: whole_lanes
-- Each lane may give all its due jobs, because no two lanes have the same priority.
chosen AS MATERIALIZED (SELECT wanted.*, wanted.most AS share FROM wanted)

-- fragment: lanes_by_due_time
-- Lanes of the same priority share the claim by due time: each gives as many jobs as it has among the earliest ones.
chosen AS MATERIALIZED (
  SELECT wanted.*, shares.share
  FROM wanted
  JOIN (
    SELECT first.lane, count(*) AS share
    FROM (
      SELECT wanted.lane
      FROM wanted, clock
      CROSS JOIN LATERAL (
        SELECT jobs.next_run_at, jobs.id FROM redrive.jobs
        WHERE jobs.lane = wanted.lane AND jobs.state < 2 AND jobs.next_run_at <= clock.now
          AND (jobs.next_run_at, jobs.id) >= (wanted.from_at, wanted.from_id)
        ORDER BY jobs.next_run_at, jobs.id
        LIMIT wanted.most
      ) AS due
      ORDER BY wanted.priority DESC, due.next_run_at, due.id
      LIMIT $4::bigint
    ) AS first
    GROUP BY first.lane
  ) AS shares USING (lane)
  ORDER BY wanted.priority DESC
)

-- fragment: lease_due
-- Leases due jobs, at most $4, and charges each an attempt, in one write. Skips rows that another claim has locked. A job may have
-- its own lease duration. $8 the worker; $9 its lease. Leases nothing if one of the lanes is limited, because limits are checked under
-- locks that this statement does not take.
limited AS MATERIALIZED (SELECT coalesce(bool_or(wanted.limited), false) AS yes FROM wanted),
due AS MATERIALIZED (
  SELECT due.* FROM clock, chosen
  CROSS JOIN LATERAL (
    SELECT jobs.ctid AS place, jobs.id, jobs.lane, jobs.state, jobs.next_run_at FROM redrive.jobs
    WHERE jobs.lane = chosen.lane AND jobs.state < 2 AND jobs.next_run_at <= clock.now
      AND (jobs.next_run_at, jobs.id) >= (chosen.from_at, chosen.from_id)
    ORDER BY jobs.next_run_at, jobs.id
    LIMIT chosen.share
    FOR UPDATE SKIP LOCKED
  ) AS due
  WHERE NOT (SELECT limited.yes FROM limited)
  LIMIT $4::bigint
), claimed AS (
  UPDATE redrive.jobs
  SET state = 2, attempt = attempt + 1, epoch = epoch + 1, started_at = clock.now,
    lease_until = clock.now + coalesce(lease_ms, $9::bigint), worker = $8::text, awaits = NULL
  FROM due, clock
  WHERE jobs.ctid = due.place
  RETURNING
    {job_columns}
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM due GROUP BY lane, state
  UNION ALL
  SELECT lane, 2, count(*) FROM due GROUP BY lane
), next AS (
  SELECT min(later.next_run_at) AS due
  FROM wanted
  LEFT JOIN LATERAL (
    SELECT due.next_run_at, due.id FROM due WHERE due.lane = wanted.lane
    ORDER BY due.next_run_at DESC, due.id DESC LIMIT 1
  ) AS last ON true
  CROSS JOIN LATERAL (
    SELECT jobs.next_run_at FROM redrive.jobs
    WHERE jobs.lane = wanted.lane AND jobs.state < 2
      AND (jobs.next_run_at, jobs.id) >= (coalesce(last.next_run_at, wanted.from_at), coalesce(last.id, wanted.from_id))
      AND jobs.id IS DISTINCT FROM last.id
    ORDER BY jobs.next_run_at, jobs.id
    LIMIT 1
  ) AS later
)
SELECT claimed.*, clock.now, next.due, limited.yes AS limited
FROM clock CROSS JOIN next CROSS JOIN limited LEFT JOIN claimed ON true

-- name: claim_whole_lanes
-- Claims from lanes of which no two have the same priority.
WITH {clock}, {lanes_to_claim},
{whole_lanes},
{lease_due};

-- name: claim_by_due_time
-- Claims from lanes of which several have the same priority.
WITH {clock}, {lanes_to_claim},
{lanes_by_due_time},
{lease_due};

-- name: claim_candidates
-- Locks due jobs for a claim under limits, which decides about each of them. Skips rows that another claim has locked, and lanes that
-- are paused. $2 and $3 lanes, and how many candidates each may give; $4 the maximum number of candidates. Each scan starts at the
-- beginning of its lane: a job that waited for a slot becomes due at its old position.
WITH {clock}, wanted AS MATERIALIZED (
  SELECT lanes.lane, lanes.priority, -9223372036854775808 AS from_at,
    '00000000-0000-0000-0000-000000000000'::uuid AS from_id, requested.most
  FROM unnest($2::integer[], $3::bigint[]) AS requested (lane, most) JOIN redrive.lanes USING (lane)
  WHERE {lane_is_claimable}
),
{lanes_by_due_time},
due AS MATERIALIZED (
  SELECT due.* FROM clock, chosen
  CROSS JOIN LATERAL (
    SELECT jobs.id, jobs.lane, jobs.state, jobs.next_run_at, jobs.partition, jobs.strict FROM redrive.jobs
    WHERE jobs.lane = chosen.lane AND jobs.state < 2 AND jobs.next_run_at <= clock.now
    ORDER BY jobs.next_run_at, jobs.id
    LIMIT chosen.share
    FOR UPDATE SKIP LOCKED
  ) AS due
  LIMIT $4::bigint
)
SELECT due.* FROM due JOIN redrive.lanes USING (lane) ORDER BY lanes.priority DESC, due.next_run_at, due.id;

-- name: settle
-- Applies verdicts. The epoch shuts out a worker whose lease was reclaimed meanwhile. Attempts, follow-ups and counts are
-- written in the same statement, and only for leases that still held. A job that ends as dead or cancelled and may have children is
-- marked, see operate.sql. $2 the horizon; $3 the latest due time of a follow-up: if that is too far ahead, nothing is applied; $4 to $18
-- the settlements; $19 to $27 the attempts; $28 to $47 the follow-ups; $48 the number of the job tree; $49 whether settlements must
-- be applied in order. Then nothing is applied if a settlement ends live children, because that may change the result of
-- another settlement; `ends_children` lists such jobs.
WITH {clock}, given AS MATERIALIZED (
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
  ) AS follow_ups (follows, epoch, {new_job_arguments})
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), ends_children AS MATERIALIZED (
  SELECT jobs.id FROM given JOIN redrive.jobs ON jobs.id = given.id AND jobs.epoch = given.epoch
  WHERE $49::boolean AND jobs.state::integer = 2
    AND {next_state} > 4
    AND coalesce((
      SELECT true FROM redrive.jobs AS child
      WHERE child.parent = jobs.id AND child.state < 4 AND NOT child.detached AND NOT child.cancel_requested
      LIMIT 1
    ), false)
), settled AS (
  -- If a cancel was requested meanwhile, a job that would continue is cancelled. A job that ended stays as it is.
  UPDATE redrive.jobs SET
    state = {next_state},
    finished_at = CASE WHEN {next_state} > 3 THEN clock.now END,
    lease_until = NULL,
    next_run_at = CASE WHEN {next_state} < 4
      THEN clock.now + coalesce(given.wait_ms, 0) ELSE jobs.next_run_at END,
    -- Decorrelated jitter depends on the wait between two attempts. A snooze is not such a wait.
    wait_ms = CASE WHEN {next_state} = 1
      THEN coalesce(given.wait_ms, jobs.wait_ms) ELSE jobs.wait_ms END,
    attempt = jobs.attempt - given.refund,
    began_at = jobs.began_at + given.budget_pause,
    last_error = coalesce(given.error, jobs.last_error),
    last_status = coalesce(given.status, jobs.last_status),
    output = coalesce(given.output, jobs.output),
    reason = given.reason,
    awaits = CASE WHEN {next_state} < 4
      THEN given.awaits END,
    awaits_name = given.awaits_name,
    awaits_branch = given.awaits_branch,
    awaits_failures = given.awaits_failures
  FROM clock, given
  WHERE jobs.id = given.id AND jobs.epoch = given.epoch AND jobs.state::integer = 2
    AND NOT EXISTS (SELECT FROM late) AND NOT EXISTS (SELECT FROM ends_children)
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
  {insert_new_jobs}
  FROM clock, follow_ups AS new_jobs JOIN settled ON settled.id = new_jobs.follows AND settled.epoch = new_jobs.epoch
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
  settled.due, EXISTS (SELECT FROM marked) AS marked, (SELECT array_agg(ends_children.id) FROM ends_children) AS ends_children,
  (SELECT array_agg(followed.id) FROM followed WHERE followed.partition IS NOT NULL) AS followed
FROM clock LEFT JOIN settled ON true;

-- fragment: next_state
-- The state after a settlement. A requested cancel ends a job that would continue.
CASE WHEN jobs.cancel_requested THEN given.state_if_cancelling ELSE given.state END

-- name: settle_success
-- Ends jobs with success, without an attempt to log or a follow-up: most settlements. The epoch shuts out a worker whose
-- lease was reclaimed meanwhile. $2 and $3 the leases.
WITH {clock}, settled AS (
  UPDATE redrive.jobs SET state = 4, finished_at = clock.now, lease_until = NULL, reason = NULL
  FROM clock, unnest($2::uuid[], $3::bigint[]) AS given (id, epoch)
  WHERE jobs.id = given.id AND jobs.epoch = given.epoch AND jobs.state::integer = 2
  RETURNING jobs.id, jobs.epoch, jobs.lane, jobs.partition, jobs.strict
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT settled.lane, changes.state, changes.sign * count(*)
  FROM settled, (VALUES (2::smallint, -1), (4::smallint, 1)) AS changes (state, sign)
  GROUP BY settled.lane, changes.state, changes.sign
)
SELECT id, epoch, 4::smallint AS state, lane, partition, strict, false AS due FROM settled;

-- name: extend
-- Renews leases that still hold, and reports requested cancels. $2 and $3 the leases; $4 their new duration.
WITH {clock}
UPDATE redrive.jobs SET lease_until = clock.now + $4::bigint
FROM clock, unnest($2::uuid[], $3::bigint[]) AS given (id, epoch)
WHERE jobs.id = given.id AND jobs.epoch = given.epoch AND jobs.state::integer = 2
RETURNING jobs.id, jobs.epoch, jobs.cancel_requested;

-- name: reclaim
-- Takes over leases that have run out, earliest first. The new epoch shuts out the old holder. No attempt is charged. The name of the
-- old worker stays in the row, because the settlement logs it. Takes nothing from a sealed store, and no lease that the caller holds.
-- $2 kinds, empty for all; $3 the maximum number of leases to take; $4 the earliest end of a lease to scan; $5 the new lease; $6 and
-- $7 the leases that the caller holds. `own_expired` says whether one of these has run out; it is false if $3 leases were taken,
-- because then the caller scans again anyway.
WITH {clock}, expired AS MATERIALIZED (
  SELECT jobs.ctid AS place, jobs.lease_until AS ended FROM redrive.jobs
  WHERE jobs.state = 2 AND jobs.lease_until <= (SELECT now FROM clock) AND jobs.lease_until >= $4::bigint
    AND (
      cardinality($2::text[]) = 0
      OR jobs.lane = ANY (ARRAY(SELECT lanes.lane FROM redrive.lanes WHERE lanes.kind = ANY ($2::text[])))
    )
    AND {store_is_not_sealed}
    AND (jobs.id, jobs.epoch) NOT IN (SELECT * FROM unnest($6::uuid[], $7::bigint[]))
  ORDER BY jobs.lease_until, jobs.id
  LIMIT $3::bigint
  FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE redrive.jobs SET epoch = epoch + 1, lease_until = clock.now + $5::bigint
  FROM expired, clock
  WHERE jobs.ctid = expired.place
  RETURNING
    {job_columns}, expired.ended
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
  END AS own_expired
FROM clock LEFT JOIN taken ON true;
