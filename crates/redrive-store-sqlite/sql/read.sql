-- Reads: single jobs, lists, searches, the attempt log, statistics.

-- name: get
-- One job.
SELECT {job_columns}, seq FROM redrive_jobs WHERE id = ?1;

-- name: get_state
-- The lane and state of one job.
SELECT lane, state FROM redrive_jobs WHERE id = ?1;

-- name: list
-- The start of a list or search: the index, the conditions and the order follow.
SELECT {job_columns}, seq FROM redrive_jobs;

-- name: list_running
-- The start of a search among running jobs: the conditions and the order follow. CROSS JOIN makes SQLite go from the
-- ranges to the jobs.
SELECT {job_columns}, seq FROM redrive_lease_ranges CROSS JOIN redrive_jobs ON seq >= first AND seq <= last;

-- name: attempts
-- The attempt log of one job, newest first.
SELECT epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at
FROM redrive_attempts WHERE job = ?1 AND epoch < ?2
ORDER BY epoch DESC LIMIT ?3;

-- name: counts_by_queue
-- The number of jobs by queue and state, from the counts that every write maintains.
SELECT queue, state, sum(jobs) FROM redrive_counts JOIN redrive_lanes USING (lane)
GROUP BY queue, state HAVING sum(jobs) <> 0;

-- name: counts_by_lane
-- The number of jobs by lane and state, from the counts that every write maintains.
SELECT lane, state, jobs FROM redrive_counts WHERE jobs > 0;

-- name: count_finished
-- How many jobs entered a final state between ?2 (included) and ?3 (excluded), counted up to ?4.
SELECT count(*) FROM (
  SELECT 1 FROM redrive_jobs WHERE state = ?1 AND finished_at >= ?2 AND finished_at < ?3 LIMIT ?4
);

-- name: oldest_examined
-- The oldest of the next ?2 ids before ?1, newest first: where a search that examines ?2 jobs ends. Reads the index of
-- ids only.
SELECT id FROM redrive_jobs WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2 - 1;

-- name: oldest_examined_dead
-- The same as oldest_examined among dead jobs, from their own index.
SELECT id FROM redrive_jobs WHERE state = 5 AND id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2 - 1;

-- name: count_before
-- How many ids there are before ?1. The last page of a search needs it: fewer jobs are left than it may examine.
SELECT count(*) FROM redrive_jobs WHERE id < ?1;

-- name: count_dead_before
-- The same as count_before among dead jobs.
SELECT count(*) FROM redrive_jobs WHERE state = 5 AND id < ?1;

-- name: tenants_with_keys
-- The tenants that have idempotency keys. Seeks in the index once for each tenant.
WITH RECURSIVE tenants (tenant) AS (
  SELECT min(tenant) FROM redrive_jobs WHERE key IS NOT NULL
  UNION ALL
  SELECT (SELECT min(tenant) FROM redrive_jobs WHERE key IS NOT NULL AND tenant > tenants.tenant)
  FROM tenants WHERE tenants.tenant IS NOT NULL
)
SELECT tenant FROM tenants WHERE tenant IS NOT NULL;
