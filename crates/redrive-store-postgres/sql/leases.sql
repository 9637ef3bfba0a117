-- Parts of statements that add jobs, lease them, or write under leases.
--
-- An epoch is the number of a claim, and in its low 16 bits how often the job was leased.

-- fragment: new_job_arguments
-- The columns of a job as callers pass them. A job is due `at` a time, or else `after` a time from now.
id, lane, at, after, timeout_ms, lease_ms, tenant, policy, key, fingerprint, target, metadata, payload, parent, branch,
    partition, strict, detached

-- fragment: insert_new_jobs
-- Inserts new jobs. The statement continues with the rows, under the name new_jobs, and with {place_new_jobs}.
INSERT INTO redrive.jobs (
    id, lane, due, created_at, timeout_ms, lease_ms, tenant, policy, key, fingerprint, target, metadata, payload, parent, branch,
    partition, strict, detached
  )
  SELECT
    new_jobs.id, new_jobs.lane, coalesce(new_jobs.at, now + new_jobs.after), now, new_jobs.timeout_ms, new_jobs.lease_ms,
    new_jobs.tenant, new_jobs.policy, new_jobs.key, new_jobs.fingerprint, new_jobs.target, new_jobs.metadata, new_jobs.payload,
    new_jobs.parent, new_jobs.branch, new_jobs.partition, new_jobs.strict, new_jobs.detached

-- fragment: place_new_jobs
-- Leaves out jobs whose id, or tenant and idempotency key, exists. Makes the others claimable, and counts them.
ON CONFLICT DO NOTHING
  RETURNING id, lane, due, lease_ms, parent, branch, partition, strict, detached
), made_ready AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, partition, strict) SELECT lane, due, id, lease_ms, partition, strict FROM added
), added_children AS (
  INSERT INTO redrive.children (parent, id, branch, detached)
  SELECT parent, id, branch, detached FROM added WHERE parent IS NOT NULL
), ordered AS (
  INSERT INTO redrive.ordered (partition, id) SELECT partition, id FROM added WHERE strict AND partition IS NOT NULL

-- fragment: leased_columns
-- The columns of a job that a claim has just leased, in the order of all reads.
jobs.id, jobs.lane, 2::smallint AS state, coalesce(progress.next_run_at, jobs.due) AS next_run_at, coalesce(progress.run, 1) AS run,
    coalesce(progress.attempt, 0) + 1 AS attempt,
    made.claim << 16 | least(65535, (coalesce(progress.epoch, 0) & 65535) + made.reclaims + 1) AS epoch, jobs.created_at,
    coalesce(progress.began_at, jobs.due) AS began_at, made.started_at, made.lease_until, NULL::bigint AS finished_at,
    progress.wait_ms, jobs.timeout_ms, jobs.lease_ms, coalesce(jobs.id = ANY (made.cancels), false) AS cancel_requested,
    progress.last_status, jobs.tenant, jobs.policy, made.worker, jobs.key, NULL::text AS reason, jobs.target, progress.last_error,
    jobs.metadata, jobs.payload, NULL::bytea AS output, jobs.parent, jobs.branch, NULL::smallint AS awaits, NULL::text AS awaits_name,
    NULL::integer AS awaits_branch, NULL::bigint AS awaits_failures, coalesce(progress.paused, false) AS paused, jobs.partition,
    jobs.strict, jobs.detached

-- fragment: lease_taken
-- Leases the jobs whose rows `taken` removed, one claim for each duration of a lease. $8 the worker; $9 its lease.
made AS (
  INSERT INTO redrive.claims (claim, lease_until, started_at, worker, ids)
  SELECT nextval('redrive.claim_numbers'), groups.lease_until, clock.now, $8::text, groups.ids
  FROM clock, (
    SELECT clock.now + coalesce(taken.lease_ms, $9::bigint) AS lease_until, array_agg(taken.id ORDER BY taken.id) AS ids
    FROM clock, taken GROUP BY 1
  ) AS groups
  RETURNING claim, lease_until, started_at, reclaims, worker, cancels
), unwaiting AS (
  DELETE FROM redrive.waiting WHERE id = ANY (ARRAY(SELECT taken.id FROM taken WHERE taken.awaiting))
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM taken GROUP BY lane, state
  UNION ALL
  SELECT lane, 2, count(*) FROM taken GROUP BY lane
)

-- fragment: held_leases
-- The given leases (id, epoch) that still hold. Locks their claims, so that nobody takes the jobs away before this transaction ends.
-- A lease holds while its claim lists the job and the job was not settled under it.
fenced AS MATERIALIZED (
  SELECT claims.* FROM redrive.claims
  WHERE claims.claim = ANY (ARRAY(SELECT DISTINCT given.epoch >> 16 FROM given))
  ORDER BY claims.claim, claims.part
  FOR KEY SHARE
), held AS MATERIALIZED (
  SELECT
    given.*, fenced.claim, fenced.part, fenced.whole, fenced.started_at AS lease_started_at, fenced.worker AS lease_worker,
    coalesce(given.id = ANY (fenced.cancels), false) AS cancelling
  FROM given
  JOIN fenced ON fenced.claim = given.epoch >> 16 AND (fenced.whole OR given.id = ANY (fenced.ids))
  LEFT JOIN redrive.progress ON progress.id = given.id
  WHERE given.epoch = fenced.claim << 16 | least(65535, (coalesce(progress.epoch, 0) & 65535) + fenced.reclaims + 1)
    AND coalesce(progress.epoch, 0) < given.epoch
    AND NOT coalesce((SELECT true FROM redrive.ended WHERE ended.id = given.id), false)
)
