-- Limits of queues and of partition keys: which jobs may start, and which get the slots that others free.
--
-- $1 is the current time in every statement that uses {clock}: NULL for the server's clock.

-- name: lanes_with_limits
-- Lists the lanes that a claim reads, with the limits of their queues. $1 and $2 queues and kinds, empty for all.
SELECT lanes.lane, lanes.queue, lanes.partitioned, limits.value AS limits
FROM redrive.lanes
LEFT JOIN redrive.records AS limits
  ON limits.kind = 'quota' AND limits.id = lanes.queue AND limits.value IS NOT NULL
WHERE (cardinality($1::text[]) = 0 OR lanes.queue = ANY ($1::text[]))
  AND (cardinality($2::text[]) = 0 OR lanes.kind = ANY ($2::text[]))
  AND {lane_is_claimable};

-- name: count_usage
-- Reads in one snapshot the numbers that a claim under limits needs: the limits of queues ($2), how many jobs run in the queues with limits
-- ($3) and in partitions ($5), how many started there within the intervals of their rates ($4, $6; NULL without a rate), and the first job
-- in strict order. Must start after the locks are held, because earlier counts are out of date.
WITH {clock}, queues AS MATERIALIZED (
  SELECT * FROM unnest($3::text[], $4::bigint[]) AS queues (scope, span)
), partitions AS MATERIALIZED (
  SELECT * FROM unnest($5::text[], $6::bigint[]) AS partitions (scope, span)
)
SELECT 0 AS what, NULL AS scope, clock.now AS number, NULL::bigint AS at, NULL::uuid AS id, NULL::bytea AS value FROM clock
UNION ALL
SELECT 1, records.id, NULL, NULL, NULL, records.value FROM redrive.records
WHERE records.kind = 'quota' AND records.id = ANY ($2::text[]) AND records.value IS NOT NULL
UNION ALL
SELECT 2, queues.scope, coalesce((
  SELECT sum(counts.jobs)::bigint FROM redrive.counts
  WHERE counts.state = 2 AND counts.lane = ANY (ARRAY(SELECT lanes.lane FROM redrive.lanes WHERE lanes.queue = queues.scope))
), 0), NULL, NULL, NULL
FROM queues
UNION ALL
SELECT 2, partitions.scope, (
  SELECT count(*) FROM redrive.jobs WHERE jobs.partition = partitions.scope AND jobs.state = 2
), NULL, NULL, NULL
FROM partitions
UNION ALL
SELECT 3, scopes.scope, started.jobs, started.at, NULL, NULL
FROM (SELECT * FROM queues UNION ALL SELECT * FROM partitions) AS scopes, clock
-- OFFSET 0 makes the planner read the index once per scope, whatever number of rows it expects.
CROSS JOIN LATERAL (
  SELECT starts.at, sum(starts.jobs)::bigint AS jobs FROM redrive.starts
  WHERE starts.scope = scopes.scope AND starts.at > clock.now - scopes.span
  GROUP BY starts.at
  OFFSET 0
) AS started
WHERE scopes.span IS NOT NULL
UNION ALL
SELECT 4, partitions.scope, NULL, NULL, (
  SELECT jobs.id FROM redrive.jobs
  WHERE jobs.partition = partitions.scope AND jobs.strict AND jobs.state < 4
  ORDER BY jobs.id LIMIT 1
), NULL
FROM partitions;

-- name: next_due
-- Finds when the first job of each queue is due. $1 the lanes of a claim.
SELECT lanes.queue, min(first.next_run_at) AS due
FROM unnest($1::integer[]) AS requested (lane)
JOIN redrive.lanes USING (lane)
CROSS JOIN LATERAL (
  SELECT jobs.next_run_at FROM redrive.jobs
  WHERE jobs.lane = requested.lane AND jobs.state < 2
  ORDER BY jobs.next_run_at, jobs.id
  LIMIT 1
) AS first
GROUP BY lanes.queue;

-- name: apply_claim
-- Applies the decisions of a claim to jobs that this transaction has locked: leases some ($2) and charges each an attempt, makes some ($5)
-- wait for a slot, delays some ($6, until $7), and records the starts that rates count ($8, $9). $1 the time; $3 the worker; $4 its
-- lease; $10 to $12 the previous lanes and states of the jobs, and whether they were leased.
WITH claimed AS (
  UPDATE redrive.jobs
  SET state = 2, attempt = attempt + 1, epoch = epoch + 1, started_at = $1::bigint,
    lease_until = $1::bigint + coalesce(lease_ms, $4::bigint), worker = $3::text, awaits = NULL
  WHERE jobs.id = ANY ($2::uuid[])
  RETURNING
    {job_columns}
), waiting AS (
  UPDATE redrive.jobs SET state = 3, awaits = 3 WHERE jobs.id = ANY ($5::uuid[])
), delayed AS (
  UPDATE redrive.jobs SET next_run_at = delays.at FROM unnest($6::uuid[], $7::bigint[]) AS delays (id, at) WHERE jobs.id = delays.id
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
SELECT * FROM claimed;

-- name: lock_scopes
-- Locks scopes until the end of the transaction, so that nobody else counts in them, and reads the limits of queues. $1 the class of
-- the locks; $2 the locks, in order; $3 the queues.
WITH locked AS MATERIALIZED (
  SELECT pg_advisory_xact_lock($1::integer, stripe) FROM unnest($2::integer[]) AS stripe
), all_locked AS MATERIALIZED (
  SELECT count(*) AS locks FROM locked
)
-- The join makes the server take every lock before it reads a record.
SELECT records.id, records.value FROM all_locked
LEFT JOIN redrive.records ON records.kind = 'quota' AND records.id = ANY ($3::text[]) AND records.value IS NOT NULL;

-- name: read_partitions
-- Reads in one snapshot the numbers that decide which jobs of partitions ($2) get free slots: how many jobs run, and how many
-- without strict order could be claimed now, both counted up to $3; the first job in strict order; and the waiting jobs in order,
-- at most $4. Must start after the locks are held, because earlier counts are out of date.
WITH {clock}, partitions AS MATERIALIZED (
  SELECT scope, split_part(scope, E'\x1f', 1) AS queue, most, next
  FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS partitions (scope, most, next)
)
SELECT
  partitions.scope, clock.now,
  (
    SELECT count(*) FROM (
      SELECT FROM redrive.jobs WHERE jobs.partition = partitions.scope AND jobs.state = 2 LIMIT partitions.most
    ) AS running
  ) AS running,
  (
    SELECT count(*) FROM (
      SELECT FROM redrive.jobs
      WHERE jobs.partition = partitions.scope AND jobs.state IN (0, 1) AND jobs.next_run_at <= clock.now
        AND NOT jobs.strict
      LIMIT partitions.most
    ) AS claimable
  ) AS claimable,
  first.id AS first, coalesce(first.waits_for_slot, false) AS first_waits, coalesce(first.due, false) AS first_due,
  waiting.ids, waiting.due
FROM clock CROSS JOIN partitions
LEFT JOIN LATERAL (
  SELECT jobs.id, coalesce(jobs.awaits = 3, false) AS waits_for_slot, jobs.next_run_at <= clock.now AS due FROM redrive.jobs
  WHERE jobs.partition = partitions.scope AND jobs.strict AND jobs.state < 4
  ORDER BY jobs.id LIMIT 1
) AS first ON true
CROSS JOIN LATERAL (
  SELECT array_agg(waiting.id) AS ids, array_agg(waiting.due) AS due
  FROM (
    SELECT each.id, each.due FROM redrive.lanes
    CROSS JOIN LATERAL (
      SELECT jobs.id, jobs.next_run_at, jobs.next_run_at <= clock.now AS due FROM redrive.jobs
      WHERE jobs.partition = partitions.scope AND jobs.lane = lanes.lane AND jobs.awaits = 3 AND NOT jobs.strict
      ORDER BY jobs.next_run_at, jobs.id
      LIMIT partitions.next
    ) AS each
    WHERE lanes.queue = partitions.queue
    ORDER BY lanes.priority DESC, each.next_run_at, each.id
    LIMIT partitions.next
  ) AS waiting
) AS waiting;

-- name: give_slots
-- Ends the wait of jobs ($1) that still wait for a slot. Neither their due time nor their time budget changes.
WITH locked AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) AND awaits = 3 ORDER BY id FOR NO KEY UPDATE
), resumed AS (
  UPDATE redrive.jobs SET state = CASE WHEN jobs.state = 3 THEN 0 ELSE jobs.state END, awaits = NULL
  FROM locked
  WHERE jobs.id = locked.id
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT locked.lane, changes.state, changes.sign * count(*)
  FROM locked, (VALUES (3::smallint, -1), (0::smallint, 1)) AS changes (state, sign)
  WHERE locked.state = 3
  GROUP BY locked.lane, changes.state, changes.sign
)
SELECT id FROM locked;
