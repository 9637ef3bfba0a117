-- The life of a job: enqueue, claim, settle, extend, reclaim, prune; and the lanes and counts that these maintain.
-- States: 0 pending, 1 retrying, 2 running, 3 waiting, 4 succeeded, 5 dead, 6 cancelled.

-- name: insert_lane
-- Adds a lane and returns its number.
INSERT INTO redrive_lanes (queue, kind, priority) VALUES (?1, ?2, ?3) RETURNING lane;

-- name: read_lanes
-- Every lane that has ever had a job.
SELECT lane, queue, kind, priority FROM redrive_lanes;

-- name: change_count
-- Adds ?3, which may be negative, to the number of jobs in a lane and state. Runs once per transaction for each lane
-- and state that changed.
INSERT INTO redrive_counts (lane, state, jobs) VALUES (?1, ?2, ?3)
ON CONFLICT (lane, state) DO UPDATE SET jobs = jobs + excluded.jobs;

-- name: enqueue
-- Adds a job unless its id, or its tenant and idempotency key, exist already: a repeated enqueue changes nothing.
INSERT INTO redrive_jobs
  (id, lane, state, next_run_at, created_at, began_at, timeout_ms, tenant, policy, key, fingerprint, metadata, payload,
   lease_ms, subject, parent, branch, partition, strict, detached)
VALUES (?1, ?2, 0, ?3, ?4, ?3, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
ON CONFLICT DO NOTHING;

-- name: id_exists
-- One row if a job has this id.
SELECT 1 FROM redrive_jobs WHERE id = ?1;

-- name: find_by_key
-- The job that has an idempotency key, and the fingerprint of the request that created it.
SELECT id, fingerprint FROM redrive_jobs WHERE tenant = ?1 AND key = ?2;

-- name: find_unique_holder
-- The job that holds a unique key, the time until which the key is reserved, and the job's state. A deleted job has no
-- state.
SELECT uniques.job, uniques.until, jobs.state
FROM redrive_uniques uniques LEFT JOIN redrive_jobs jobs ON jobs.id = uniques.job
WHERE uniques.tenant = ?1 AND uniques.kind = ?2 AND uniques.key = ?3;

-- name: assign_unique
-- Assigns a unique key to a job, whether or not another job had it.
INSERT INTO redrive_uniques (tenant, kind, key, job, until) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (tenant, kind, key) DO UPDATE SET job = excluded.job, until = excluded.until;

-- name: replace_unclaimed
-- Gives a job new content and a new due time, but only if no worker has ever claimed it.
UPDATE redrive_jobs SET
  next_run_at = ?2, began_at = ?2, timeout_ms = ?3, lease_ms = ?4, policy = ?5, subject = ?6, metadata = ?7, payload = ?8
WHERE id = ?1 AND state = 0 AND epoch = 0;

-- name: claim_due
-- The due jobs of one lane, earliest first, with the columns that the writer needs to lease them. It walks the index of
-- claimable jobs and does not sort.
SELECT seq, id, next_run_at, state, epoch, lease_ms, partition, strict
FROM redrive_jobs INDEXED BY redrive_due
WHERE state < 2 AND lane = ?1 AND next_run_at <= ?2
ORDER BY next_run_at, id LIMIT ?3;

-- name: claim
-- Leases the claimable rows from ?1 to ?2, and charges each an attempt, in one write. A job's own lease duration
-- replaces ?4. OR FAIL saves SQLite the statement journal: the writer rolls back the whole transaction after any error.
UPDATE OR FAIL redrive_jobs
SET state = 2, attempt = attempt + 1, epoch = {next_epoch}, started_at = ?3, lease_until = ?3 + coalesce(lease_ms, ?4), worker = ?5, awaits = NULL
WHERE seq >= ?1 AND seq <= ?2 AND state < 2;

-- name: read_claimed
-- The jobs in the rows from ?1 to ?2, which a claim has just leased.
SELECT {job_columns}, seq FROM redrive_jobs WHERE seq >= ?1 AND seq <= ?2;

-- name: wait_for_slot
-- Makes a due job wait for a free slot of its partition. Charges no attempt.
UPDATE redrive_jobs SET state = 3, awaits = 3 WHERE seq = ?1 AND state < 2;

-- name: delay
-- Moves the due time of a due job. Charges no attempt.
UPDATE redrive_jobs SET next_run_at = ?2 WHERE seq = ?1 AND state < 2;

-- name: first_due
-- The due time of the first claimable job of a lane, from the first entry of the index.
SELECT next_run_at FROM redrive_jobs INDEXED BY redrive_due
WHERE state < 2 AND lane = ?1
ORDER BY next_run_at LIMIT 1;

-- name: find_leased
-- The row, lane, worker and partition of a job that this process has not leased itself.
SELECT seq, lane, worker, partition FROM redrive_jobs WHERE id = ?1;

-- name: settle
-- Applies one verdict. The epoch rejects a worker whose lease was reclaimed meanwhile. ?4 selects the case that the
-- values are for: 1 if a cancel was requested, otherwise 0. In the other case nothing changes.
UPDATE redrive_jobs SET
  state = ?5, finished_at = ?6, lease_until = NULL,
  next_run_at = coalesce(?7, next_run_at), wait_ms = coalesce(?8, wait_ms),
  attempt = attempt - ?9, began_at = began_at + ?10,
  last_error = coalesce(?11, last_error), last_status = coalesce(?14, last_status), output = coalesce(?12, output), reason = ?13,
  awaits = ?15, awaits_name = ?16, awaits_branch = ?17, awaits_failures = ?18
WHERE seq = ?1 AND id = ?2 AND epoch = ?3 AND state = 2 AND cancel_requested = ?4;

-- name: settle_range
-- Ends the rows from ?1 to ?2 with success, all under leases of epoch ?3, in one write. The epoch rejects a worker
-- whose lease was reclaimed meanwhile. The caller compares the number of changed rows, and undoes the write if one was
-- rejected.
UPDATE OR FAIL redrive_jobs SET state = 4, finished_at = ?4, lease_until = NULL, reason = NULL
WHERE seq >= ?1 AND seq <= ?2 AND epoch = ?3 AND state = 2 AND cancel_requested = 0;

-- name: insert_attempt
-- Logs an attempt in the transaction that settled it. The primary key allows one outcome for each epoch.
INSERT INTO redrive_attempts
  (job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13);

-- name: extend
-- Renews a lease that its worker still holds, and returns whether a cancel was requested.
UPDATE redrive_jobs SET lease_until = ?3
WHERE id = ?1 AND epoch = ?2 AND state = 2
RETURNING cancel_requested;

-- name: read_lease_ranges
-- The running jobs, as ranges of rows.
SELECT first, last FROM redrive_lease_ranges;

-- name: write_lease_range
-- Adds a range, or changes the end of the range that starts at ?1.
INSERT INTO redrive_lease_ranges (first, last) VALUES (?1, ?2) ON CONFLICT (first) DO UPDATE SET last = excluded.last;

-- name: delete_lease_range
-- Deletes the range that starts at ?1, if there is one.
DELETE FROM redrive_lease_ranges WHERE first = ?1;

-- name: earliest_lease_end
-- When the first lease expires. Reads all running jobs. CROSS JOIN makes SQLite go from the ranges to the jobs.
SELECT min(lease_until) FROM redrive_lease_ranges CROSS JOIN redrive_jobs ON seq >= first AND seq <= last
WHERE state = 2;

-- name: expired_leases
-- Jobs whose lease has expired, the earliest first. ?3 is a JSON list of lanes, or NULL for all lanes. ?4 is a JSON
-- list of the leases that the caller itself holds, each as ID:EPOCH; these are left out.
SELECT {job_columns}, seq
FROM redrive_lease_ranges CROSS JOIN redrive_jobs ON seq >= first AND seq <= last
WHERE state = 2 AND lease_until <= ?1 AND (?3 IS NULL OR lane IN (SELECT value FROM json_each(?3)))
  AND hex(id) || ':' || epoch NOT IN (SELECT value FROM json_each(?4))
ORDER BY lease_until, id LIMIT ?2;

-- name: reclaim
-- Takes over an expired lease. The new epoch rejects all later writes of the old worker; no attempt is charged. The row
-- keeps the name of the old worker, for the attempt log.
UPDATE redrive_jobs SET epoch = {next_epoch}, lease_until = ?3
WHERE seq = ?1 AND state = 2 AND lease_until <= ?2;

-- name: expired_jobs
-- Jobs of one final state that ended at ?2 or before, the earliest first. A child is left out while its parent has not
-- ended, because the parent may still read its result.
SELECT id, lane FROM redrive_jobs INDEXED BY redrive_finished
WHERE state = ?1 AND finished_at IS NOT NULL AND finished_at <= ?2
  AND NOT EXISTS (SELECT 1 FROM redrive_jobs parent WHERE parent.id = redrive_jobs.parent AND parent.state < 4)
ORDER BY finished_at, id LIMIT ?3;

-- name: delete_ended
-- Deletes a job that has ended.
DELETE FROM redrive_jobs WHERE id = ?1 AND state > 3;

-- name: delete_expired_uniques
-- Deletes unique keys whose reservation has ended and whose job was deleted before.
DELETE FROM redrive_uniques WHERE (tenant, kind, key) IN (
  SELECT tenant, kind, key FROM redrive_uniques INDEXED BY redrive_unique_until
  WHERE until <= ?1 AND NOT EXISTS (SELECT 1 FROM redrive_jobs WHERE id = redrive_uniques.job)
  LIMIT ?2
);
