-- Reads jobs, attempts and counts. These statements write nothing.

-- name: get
-- Reads jobs by id. $1 the ids. A subquery hides their number from the planner, here and in other statements, so that it always uses
-- the indexes.
SELECT
  {job_columns}
FROM redrive.all_jobs AS jobs WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])));

-- name: list
-- Lists jobs, newest id first. The caller appends the conditions that are set.
SELECT
  {job_columns}
FROM redrive.all_jobs AS jobs WHERE;

-- name: list_dead
-- Lists dead letters by their own index. The caller appends the conditions that are set.
SELECT
  {job_columns}
FROM (SELECT ended.id AS dead_id FROM redrive.ended WHERE ended.state = 5) AS dead
CROSS JOIN LATERAL (SELECT * FROM redrive.all_jobs WHERE all_jobs.id = dead.dead_id OFFSET 0) AS jobs
WHERE;

-- name: attempts
-- Reads the attempts of a job, newest first. $1 the job; $2 the epoch to continue before; $3 the maximum number of attempts.
SELECT epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at
FROM redrive.attempts WHERE job = $1 AND epoch < $2
ORDER BY epoch DESC LIMIT $3;

-- name: search_range
-- Finds the oldest of the next $2 ids before $1, newest first, and their number: the range that a search reads. Only reads the
-- index of ids.
SELECT (array_agg(id ORDER BY id))[1] AS oldest, count(*) AS jobs FROM (
  SELECT id FROM redrive.jobs WHERE id < $1 ORDER BY id DESC LIMIT $2
) AS next;

-- name: search_range_dead
-- The same among dead letters, which have an index of their own.
SELECT (array_agg(id ORDER BY id))[1] AS oldest, count(*) AS jobs FROM (
  SELECT id FROM redrive.ended WHERE state = 5 AND id < $1 ORDER BY id DESC LIMIT $2
) AS next;

-- name: count_jobs
-- Counts jobs by lane and state, from the changes that every write adds.
SELECT lane, state, sum(jobs)::bigint AS jobs FROM redrive.counts GROUP BY lane, state HAVING sum(jobs) > 0;

-- name: list_tenants
-- Lists the tenants that have idempotency keys, with one index lookup for each.
WITH RECURSIVE tenants (tenant) AS (
  SELECT min(tenant) FROM redrive.jobs WHERE key IS NOT NULL
  UNION ALL
  SELECT (SELECT min(tenant) FROM redrive.jobs WHERE key IS NOT NULL AND tenant > tenants.tenant)
  FROM tenants WHERE tenants.tenant IS NOT NULL
)
SELECT tenant FROM tenants WHERE tenant IS NOT NULL;

-- name: stats
-- Counts jobs by queue and state, from the changes that every write adds, and finds the job that has been due for longest. $1 the
-- time, NULL for the server's clock; $2 and $3 lanes with the due times where their scans start.
WITH {clock}, oldest AS (
  SELECT min(first.due) AS due, array_agg(lanes.lane) AS lanes, array_agg(first.due) AS first_due
  FROM clock, redrive.lanes
  LEFT JOIN unnest($2::integer[], $3::bigint[]) AS positions (lane, at) USING (lane)
  LEFT JOIN LATERAL (
    SELECT ready.due FROM redrive.ready
    WHERE ready.lane = lanes.lane AND ready.due <= clock.now AND ready.due >= coalesce(positions.at, -9223372036854775808)
    ORDER BY ready.due, ready.id LIMIT 1
  ) AS first ON true
  WHERE NOT lanes.idle
), totals AS (
  SELECT queue, state, sum(jobs)::bigint AS jobs FROM redrive.counts JOIN redrive.lanes USING (lane)
  GROUP BY queue, state HAVING sum(jobs) <> 0
)
SELECT clock.now, oldest.due, oldest.lanes, oldest.first_due, totals.queue, totals.state, totals.jobs
FROM clock CROSS JOIN oldest LEFT JOIN totals ON true;
