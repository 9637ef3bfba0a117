-- The life of a job while it runs: settle, extend, reclaim.
--
-- $1 is the current time in every statement that uses {now} or {clock}: NULL for the server's clock.

-- name: settle
-- Applies verdicts. The claim shuts out a worker whose lease was reclaimed meanwhile. Attempts, follow-ups and counts are
-- written in the same statement, and only for leases that still held. A job that ends as dead or cancelled and may have children is
-- marked, see operate.sql. $2 the horizon; $3 the latest due time of a follow-up: if that is too far ahead, nothing is applied; $4 to $18
-- the settlements; $19 to $25 their attempts, if they are logged; $26 to $45 the follow-ups; $46 the number of the job tree; $47 whether
-- settlements must be applied in order. Then nothing is applied if a settlement ends live children, because that may change the result
-- of another settlement; `ends_children` lists such jobs. $48 claims that have no other job left.
WITH {clock}, releasing AS MATERIALIZED (
  -- If a claim ends here, this locks every claim of the batch as well, in the order in which all statements lock claims.
  SELECT claims.claim FROM redrive.claims
  WHERE claims.claim = ANY (CASE WHEN cardinality($48::bigint[]) > 0
    THEN $48::bigint[] || ARRAY(SELECT DISTINCT unnest($5::bigint[]) >> 16) END)
  ORDER BY claims.claim, claims.part
  FOR UPDATE
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    $4::uuid[], $5::bigint[], $6::smallint[], $7::smallint[], $8::bigint[], $9::integer[], $10::bigint[], $11::text[],
    $12::integer[], $13::text[], $14::bytea[], $15::smallint[], $16::text[], $17::integer[], $18::bigint[],
    $19::integer[], $20::integer[], $21::bigint[], $22::bigint[], $23::text[], $24::text[], $25::text[]
  ) AS given (
    id, epoch, state_if_not_cancelling, state_if_cancelling, wait_ms, refund, budget_pause, error, status, reason, output, awaits,
    awaits_name, awaits_branch, awaits_failures, logged_run, logged_attempt, logged_start, logged_ms, logged_outcome, logged_error,
    logged_detail
  )
  -- Takes the locks above first. With the weaker lock below, two settlements of the last job of a claim would wait for each other.
  WHERE (SELECT count(*) FROM releasing) >= 0
), follow_ups AS MATERIALIZED (
  SELECT * FROM unnest(
    $26::uuid[], $27::bigint[], $28::uuid[], $29::integer[], $30::bigint[], $31::bigint[], $32::bigint[], $33::bigint[],
    $34::text[], $35::text[], $36::text[], $37::bytea[], $38::text[], $39::text[], $40::bytea[], $41::uuid[],
    $42::integer[], $43::text[], $44::boolean[], $45::boolean[]
  ) AS follow_ups (follows, epoch, {new_job_arguments})
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
),
{held_leases},
next AS MATERIALIZED (
  -- If a cancel was requested, a job that would continue is cancelled. A job that ended stays as it is.
  SELECT
    held.*, CASE WHEN held.cancelling THEN held.state_if_cancelling ELSE held.state_if_not_cancelling END AS state,
    clock.now + coalesce(held.wait_ms, 0) AS next_run_at, jobs.lane, jobs.due, jobs.lease_ms, jobs.parent, jobs.branch, jobs.partition,
    jobs.strict
  FROM clock, held JOIN redrive.jobs ON jobs.id = held.id
), ends_children AS MATERIALIZED (
  SELECT next.id FROM next
  WHERE $47::boolean AND next.state > 4
    AND coalesce((
      SELECT true FROM redrive.children WHERE children.parent = next.id AND children.stage = 0 AND NOT children.detached
      -- The order makes the planner use the index. Without it, a scan of the table may seem to end early.
      ORDER BY children.branch, children.id LIMIT 1
    ), false)
), applicable AS MATERIALIZED (
  SELECT * FROM next WHERE NOT EXISTS (SELECT FROM late) AND NOT EXISTS (SELECT FROM ends_children)
), progressed AS (
  -- Of two settlements under one lease, the second waits here for the first and then changes nothing.
  INSERT INTO redrive.progress AS stored (
    id, epoch, began_at, next_run_at, started_at, wait_ms, attempt, last_status, worker, last_error
  )
  SELECT
    applicable.id, applicable.epoch, coalesce(before.began_at, applicable.due) + applicable.budget_pause,
    CASE WHEN applicable.state < 4 THEN applicable.next_run_at ELSE coalesce(before.next_run_at, applicable.due) END,
    applicable.lease_started_at,
    -- Decorrelated jitter depends on the wait between two attempts. A snooze is not such a wait.
    CASE WHEN applicable.state = 1 THEN coalesce(applicable.wait_ms, before.wait_ms) ELSE before.wait_ms END,
    coalesce(before.attempt, 0) + 1 - applicable.refund, coalesce(applicable.status, before.last_status),
    applicable.lease_worker, coalesce(applicable.error, before.last_error)
  FROM applicable LEFT JOIN redrive.progress AS before ON before.id = applicable.id
  WHERE applicable.state <> 4
  ORDER BY applicable.id
  ON CONFLICT (id) DO UPDATE SET
    epoch = excluded.epoch, began_at = excluded.began_at, next_run_at = excluded.next_run_at, started_at = excluded.started_at,
    wait_ms = excluded.wait_ms, attempt = excluded.attempt, last_status = excluded.last_status, worker = excluded.worker,
    last_error = excluded.last_error
  WHERE stored.epoch < excluded.epoch
  RETURNING id, has_children
), finished AS (
  INSERT INTO redrive.ended (
    id, epoch, finished_at, started_at, attempt, last_status, state, cancel_requested, worker, reason, last_error, output
  )
  SELECT
    applicable.id, applicable.epoch, clock.now, applicable.lease_started_at,
    coalesce((SELECT progress.attempt FROM redrive.progress WHERE progress.id = applicable.id), 0) + 1 - applicable.refund,
    applicable.status, applicable.state, applicable.cancelling, applicable.lease_worker, applicable.reason, applicable.error,
    applicable.output
  FROM clock, applicable
  WHERE applicable.state = 4 OR applicable.state > 4 AND applicable.id IN (SELECT progressed.id FROM progressed)
  ON CONFLICT DO NOTHING
  RETURNING id
), settled AS MATERIALIZED (
  -- Inside CASE, the server looks up each id in a hash table. The planner expects few rows here, so it would compare each row of a join
  -- with every other, which is slow for a large batch.
  SELECT
    applicable.*,
    CASE WHEN applicable.state > 4
      THEN applicable.id IN (SELECT progressed.id FROM progressed WHERE progressed.has_children) ELSE false END AS has_children
  FROM applicable
  WHERE CASE WHEN applicable.state > 3
    THEN applicable.id IN (SELECT finished.id FROM finished) ELSE applicable.id IN (SELECT progressed.id FROM progressed) END
), ready_again AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, state, progress, awaiting, partition, strict)
  SELECT lane, next_run_at, id, lease_ms, state, true, awaits IS NOT NULL, partition, strict FROM settled WHERE state < 2
), made_waiting AS (
  INSERT INTO redrive.waiting (id, due, lane, strict, partition, awaits, awaits_name, awaits_branch, awaits_failures)
  SELECT id, next_run_at, lane, strict, partition, awaits, awaits_name, awaits_branch, awaits_failures
  FROM settled WHERE state < 4 AND awaits IS NOT NULL
), freed_slots AS (
  DELETE FROM redrive.slots USING settled WHERE slots.partition = settled.partition AND slots.id = settled.id
), unordered AS (
  DELETE FROM redrive.ordered USING settled
  WHERE settled.state > 3 AND ordered.partition = settled.partition AND ordered.id = settled.id
), succeeded_children AS (
  DELETE FROM redrive.children USING settled
  WHERE settled.state = 4 AND children.parent = settled.parent AND children.branch = settled.branch AND children.stage < 2
    AND children.id = settled.id
), failed_children AS (
  UPDATE redrive.children SET stage = 2 FROM settled
  WHERE settled.state > 4 AND children.parent = settled.parent AND children.branch = settled.branch AND children.stage < 2
    AND children.id = settled.id
), logged AS (
  INSERT INTO redrive.attempts (
    job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at
  )
  SELECT
    settled.id, settled.epoch, settled.logged_run, settled.logged_attempt, settled.logged_start, settled.logged_ms,
    settled.logged_outcome, settled.logged_error, settled.logged_detail, settled.lease_worker, settled.state,
    CASE WHEN settled.state < 2 THEN settled.wait_ms END, CASE WHEN settled.state < 2 THEN clock.now + settled.wait_ms END
  FROM clock, settled
  WHERE settled.logged_outcome IS NOT NULL
), added AS (
  {insert_new_jobs}
  FROM clock, follow_ups AS new_jobs JOIN settled ON settled.id = new_jobs.follows AND settled.epoch = new_jobs.epoch
  {place_new_jobs}
), marked AS (
  INSERT INTO redrive.closing (tree, job)
  SELECT $46::bigint, settled.id FROM settled
  WHERE settled.state > 4 AND (
    settled.has_children
    OR coalesce((
      SELECT true FROM redrive.children WHERE children.parent = settled.id AND children.stage < 2
      ORDER BY children.branch, children.id LIMIT 1
    ), false)
  )
  RETURNING mark
), released AS (
  DELETE FROM redrive.claims WHERE claims.claim = ANY ($48::bigint[]) AND EXISTS (SELECT FROM settled)
), unlisted AS (
  -- A claim that is not whole lists running jobs only.
  UPDATE redrive.claims SET ids = ARRAY(SELECT unnest(claims.ids) EXCEPT SELECT unnest(gone.ids) ORDER BY 1)
  -- `whole` comes from the locked row. The snapshot of this statement may show the row as it was before a heartbeat or a reclaim.
  FROM (SELECT claim, part, array_agg(id) AS ids FROM settled WHERE NOT whole GROUP BY claim, part) AS gone
  WHERE claims.claim = gone.claim AND claims.part = gone.part
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, 2, -count(*) FROM settled GROUP BY lane
  UNION ALL
  SELECT lane, state, count(*) FROM settled GROUP BY lane, state
  UNION ALL
  SELECT lane, 0, count(*) FROM added GROUP BY lane
)
SELECT
  EXISTS (SELECT FROM late) AS late, settled.id, settled.epoch, settled.state, settled.lane, settled.partition,
  EXISTS (SELECT FROM marked) AS marked, (SELECT array_agg(ends_children.id) FROM ends_children) AS ends_children
FROM clock LEFT JOIN settled ON true;

-- name: settle_success
-- Ends jobs with success, without an attempt to log or a follow-up: most settlements. Only for leases that this process got from a
-- claim and has not settled, of jobs without a parent and without a strict order. The claim shuts out a worker whose lease was reclaimed
-- meanwhile. Returns the leases that it did not settle: those of claims that are gone or no longer whole. Fails, as a whole, if one of the
-- jobs was settled before: looking for that first would make each insert slower. $2 to $5 the leases, with lane and attempt; $6 the
-- partitions of the jobs, to free their slots; $7 claims that have no other job left.
WITH {clock}, releasing AS MATERIALIZED (
  -- If a claim ends here, this locks every claim of the batch as well, in the order in which all statements lock claims.
  SELECT claims.claim FROM redrive.claims
  WHERE claims.claim = ANY (CASE WHEN cardinality($7::bigint[]) > 0
    THEN $7::bigint[] || ARRAY(SELECT DISTINCT unnest($3::bigint[]) >> 16) END)
  ORDER BY claims.claim, claims.part
  FOR UPDATE
), given AS MATERIALIZED (
  SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::integer[], $5::integer[], $6::text[])
    AS given (id, epoch, lane, attempt, partition)
  -- Takes the locks above first. With the weaker lock below, two settlements of the last job of a claim would wait for each other.
  WHERE (SELECT count(*) FROM releasing) >= 0
), fenced AS MATERIALIZED (
  SELECT claims.* FROM redrive.claims
  WHERE claims.claim = ANY (ARRAY(SELECT DISTINCT given.epoch >> 16 FROM given))
  ORDER BY claims.claim, claims.part
  FOR KEY SHARE
), settled AS (
  INSERT INTO redrive.ended (id, epoch, finished_at, started_at, attempt, state, cancel_requested, worker)
  SELECT
    given.id, given.epoch, clock.now, fenced.started_at, given.attempt, 4, coalesce(given.id = ANY (fenced.cancels), false),
    fenced.worker
  FROM clock, given JOIN fenced ON fenced.claim = given.epoch >> 16 AND fenced.whole
  RETURNING id, epoch
), freed_slots AS (
  DELETE FROM redrive.slots WHERE ctid = ANY (ARRAY(
    SELECT slot.position FROM given
    -- OFFSET 0 makes the planner look up each row by the index. A join may read the whole table.
    CROSS JOIN LATERAL (
      SELECT slots.ctid AS position FROM redrive.slots
      WHERE slots.partition = given.partition AND slots.id = given.id
      OFFSET 0
    ) AS slot
    WHERE CASE WHEN given.partition IS NOT NULL
      THEN (given.id, given.epoch) IN (SELECT settled.id, settled.epoch FROM settled) ELSE false END
  ))
), released AS (
  DELETE FROM redrive.claims
  -- A claim that is not whole lists jobs that are settled by the longer statement.
  WHERE claims.claim = ANY ($7::bigint[]) AND claims.claim NOT IN (SELECT fenced.claim FROM fenced WHERE NOT fenced.whole)
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lanes.lane, changes.state, changes.sign * lanes.jobs
  FROM (
    SELECT given.lane, count(*) AS jobs FROM given
    -- CASE makes the server look up each lease in a hash table. A join may compare each with every other.
    WHERE CASE WHEN given.lane IS NOT NULL
      THEN (given.id, given.epoch) IN (SELECT settled.id, settled.epoch FROM settled) ELSE false END
    GROUP BY given.lane
  ) AS lanes,
    (VALUES (2::smallint, -1), (4::smallint, 1)) AS changes (state, sign)
)
SELECT given.id, given.epoch FROM given
WHERE (given.id, given.epoch) NOT IN (SELECT settled.id, settled.epoch FROM settled);

-- name: extend
-- Renews claims as a whole, and returns the jobs that someone asked to stop. Does not wait for locks: a claim that someone has locked is
-- `busy`, and one that is gone is not returned. $2 the claims; $3 the new duration of the leases.
WITH {clock}, seen AS MATERIALIZED (
  SELECT claims.claim FROM redrive.claims WHERE claims.claim = ANY ($2::bigint[])
), locked AS MATERIALIZED (
  SELECT claims.claim, claims.part FROM redrive.claims WHERE claims.claim = ANY ($2::bigint[])
  ORDER BY claims.claim, claims.part
  FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
  UPDATE redrive.claims SET lease_until = clock.now + $3::bigint
  FROM clock, locked
  WHERE claims.claim = locked.claim AND claims.part = locked.part
  RETURNING claims.claim, claims.whole, claims.cancels, CASE WHEN NOT claims.whole THEN claims.ids END AS ids
)
SELECT seen.claim, renewed.claim IS NULL AS busy, renewed.whole, renewed.cancels, renewed.ids
FROM seen LEFT JOIN renewed USING (claim);

-- name: lock_claims
-- Locks claims, so that no worker writes under them before the end of the transaction. Leaves out those that someone has locked.
-- $1 the claims.
SELECT claims.claim, claims.part FROM redrive.claims WHERE claims.claim = ANY ($1::bigint[])
ORDER BY claims.claim, claims.part
FOR UPDATE SKIP LOCKED;

-- name: find_claims
-- Finds which of these claims exist. $1 the claims.
SELECT DISTINCT claims.claim FROM redrive.claims WHERE claims.claim = ANY ($1::bigint[]);

-- name: extend_some
-- Renews some of the jobs of claims that this transaction has locked. The others keep their lease: they become a part of their own. The
-- renewed jobs stay in the locked row, where a settlement that waits for the lock finds them; a new row is not in its snapshot. $2 and
-- $3 the leases; $4 their new duration.
WITH {clock}, given AS MATERIALIZED (
  SELECT DISTINCT * FROM unnest($2::uuid[], $3::bigint[]) AS given (id, epoch)
),
{held_leases},
renewed AS MATERIALIZED (
  SELECT held.claim, held.part, array_agg(held.id ORDER BY held.id) AS ids FROM held GROUP BY held.claim, held.part
), rest AS MATERIALIZED (
  -- The running jobs of these claims that are not renewed.
  SELECT fenced.claim, fenced.part, array_agg(listed.id ORDER BY listed.id) AS ids
  FROM fenced JOIN renewed USING (claim, part) CROSS JOIN unnest(fenced.ids) AS listed (id)
  WHERE listed.id <> ALL (renewed.ids)
    AND (
      NOT fenced.whole
      OR NOT coalesce((SELECT true FROM redrive.ended WHERE ended.id = listed.id), false)
        AND coalesce((SELECT progress.epoch >> 16 FROM redrive.progress WHERE progress.id = listed.id), -1) < fenced.claim
    )
  GROUP BY fenced.claim, fenced.part
), split AS (
  INSERT INTO redrive.claims (claim, part, lease_until, started_at, reclaims, whole, worker, cancels, ids)
  SELECT
    fenced.claim, nextval('redrive.claim_numbers'), fenced.lease_until, fenced.started_at, fenced.reclaims, false, fenced.worker,
    fenced.cancels, rest.ids
  FROM fenced JOIN rest USING (claim, part)
), extended AS (
  UPDATE redrive.claims SET
    lease_until = clock.now + $4::bigint, whole = claims.whole AND rest.claim IS NULL,
    ids = CASE WHEN rest.claim IS NULL THEN claims.ids ELSE renewed.ids END
  FROM clock, renewed LEFT JOIN rest USING (claim, part)
  WHERE claims.claim = renewed.claim AND claims.part = renewed.part
)
SELECT held.id, held.epoch, held.cancelling FROM held;

-- fragment: expired_claims
-- Claims whose leases have run out, earliest first. None in a sealed store. $2 the maximum number of claims; $3 the earliest end of a
-- lease to scan; $4 claims that the caller has looked at before.
SELECT claims.claim, claims.part FROM redrive.claims
WHERE claims.lease_until <= {now} AND claims.lease_until >= $3::bigint AND claims.claim <> ALL ($4::bigint[])
  AND {store_is_not_sealed}
ORDER BY claims.lease_until, claims.claim, claims.part
LIMIT $2::bigint

-- name: find_expired
-- Finds out whether a lease has run out, in one statement without locks: what a reclaim does while all workers live.
WITH {clock}, expired AS (
  {expired_claims}
)
SELECT clock.now, EXISTS (SELECT FROM expired) AS found FROM clock;

-- name: lock_expired
-- Locks claims whose leases have run out, so that a later statement takes over their jobs. Skips claims that someone has locked.
{expired_claims} FOR UPDATE SKIP LOCKED;

-- name: wait_for_expired
-- The same, but waits for claims that someone has locked: for another reclaim, which may leave some of their jobs.
{expired_claims} FOR UPDATE;

-- name: limit_lock_wait
-- Makes statements of this transaction fail that wait longer for a lock. $1 the time in milliseconds, as text.
SELECT set_config('lock_timeout', $1::text, true);

-- name: reclaim
-- Takes over the running jobs of claims that this transaction has locked, earliest lease first. A fresh number shuts out the old
-- holder. No attempt is charged. Worker and start stay, because the settlement logs them. Leaves jobs of other kinds and leases that
-- the caller holds where they are. $2 kinds, empty for all; $3 the maximum number of jobs; $4 the new lease; $5 and $6 the claims;
-- $7 and $8 the leases that the caller holds.
WITH {clock}, expired AS MATERIALIZED (
  SELECT claims.* FROM redrive.claims
  JOIN unnest($5::bigint[], $6::bigint[]) AS locked (claim, part) ON locked.claim = claims.claim AND locked.part = claims.part
), running AS MATERIALIZED (
  SELECT
    expired.claim, expired.part, expired.lease_until, listed.id,
    (cardinality($2::text[]) = 0 OR jobs.lane = ANY (ARRAY(SELECT lanes.lane FROM redrive.lanes WHERE lanes.kind = ANY ($2::text[]))))
      AND (listed.id, expired.claim << 16 | least(65535, (coalesce(progress.epoch, 0) & 65535) + expired.reclaims + 1)) NOT IN (
        SELECT * FROM unnest($7::uuid[], $8::bigint[])
      ) AS wanted
  FROM expired CROSS JOIN unnest(expired.ids) AS listed (id)
  JOIN redrive.jobs ON jobs.id = listed.id
  LEFT JOIN redrive.progress ON progress.id = listed.id
  WHERE NOT expired.whole
    OR coalesce(progress.epoch >> 16, -1) < expired.claim
      AND NOT coalesce((SELECT true FROM redrive.ended WHERE ended.id = listed.id), false)
), taken AS MATERIALIZED (
  SELECT * FROM running WHERE wanted ORDER BY lease_until, id LIMIT $3::bigint
), made AS (
  INSERT INTO redrive.claims (claim, lease_until, started_at, reclaims, worker, cancels, ids)
  SELECT
    nextval('redrive.claim_numbers'), clock.now + $4::bigint, expired.started_at, expired.reclaims + 1, expired.worker,
    expired.cancels, groups.ids
  FROM clock, (SELECT claim, part, array_agg(id ORDER BY id) AS ids FROM taken GROUP BY claim, part) AS groups
  JOIN expired USING (claim, part)
  RETURNING claim, lease_until, started_at, reclaims, worker, cancels, ids
), rest AS MATERIALIZED (
  SELECT running.claim, running.part, array_agg(running.id ORDER BY running.id) AS ids FROM running
  WHERE running.id NOT IN (SELECT taken.id FROM taken)
  GROUP BY running.claim, running.part
), kept AS (
  UPDATE redrive.claims SET ids = rest.ids, whole = false FROM rest WHERE claims.claim = rest.claim AND claims.part = rest.part
), removed AS (
  DELETE FROM redrive.claims USING expired
  WHERE claims.claim = expired.claim AND claims.part = expired.part
    AND NOT EXISTS (SELECT FROM rest WHERE rest.claim = expired.claim AND rest.part = expired.part)
), leased AS (
  SELECT
    {leased_columns},
    taken.lease_until AS ended_lease
  FROM made CROSS JOIN unnest(made.ids) AS listed (id)
  JOIN taken ON taken.id = listed.id
  JOIN redrive.jobs ON jobs.id = listed.id
  LEFT JOIN redrive.progress ON progress.id = listed.id
)
SELECT leased.*, clock.now, (SELECT count(*) FROM running WHERE NOT wanted) AS left_to_others
FROM clock LEFT JOIN leased ON true;
