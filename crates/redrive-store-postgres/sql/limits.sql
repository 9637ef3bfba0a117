-- Limits of queues and of partition keys: which jobs may start, and which get the slots that others free.
--
-- $1 is the current time in every statement that uses {clock}: NULL for the server's clock.

-- name: lanes_with_limits
-- Lists the lanes that a claim reads, with the limits of their queues. $1 and $2 queues and kinds, empty for all.
SELECT lanes.lane, lanes.queue, lanes.partitioned, limits.value AS limits
FROM redrive.lanes
LEFT JOIN redrive.records AS limits
  ON limits.kind = 'quota' AND limits.id = lanes.queue AND limits.value IS NOT NULL
WHERE NOT lanes.idle AND (cardinality($1::text[]) = 0 OR lanes.queue = ANY ($1::text[]))
  AND (cardinality($2::text[]) = 0 OR lanes.kind = ANY ($2::text[]))
  AND {lane_is_claimable};

-- name: count_usage
-- Reads in one snapshot the numbers that a claim under limits needs: the limits of queues ($2), how many jobs run in the queues with limits
-- ($3) and in partitions ($5), how many started there within the intervals of their rates ($4, $6; NULL without a rate), and the first job
-- in strict order. Also locks those of the candidates ($7 to $9) that are still ready and that nobody else has locked. Must start after the
-- locks are held, because earlier counts are out of date.
WITH {clock}, candidates AS MATERIALIZED (
  SELECT ready.id FROM redrive.ready
  JOIN unnest($7::integer[], $8::bigint[], $9::uuid[]) AS read (lane, due, id)
    ON ready.lane = read.lane AND ready.due = read.due AND ready.id = read.id
  FOR UPDATE OF ready SKIP LOCKED
), queues AS MATERIALIZED (
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
  SELECT count(*) FROM redrive.slots WHERE slots.partition = partitions.scope
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
  SELECT ordered.id FROM redrive.ordered WHERE ordered.partition = partitions.scope ORDER BY ordered.id LIMIT 1
), NULL
FROM partitions
UNION ALL
SELECT 5, NULL, NULL, NULL, candidates.id, NULL FROM candidates;

-- name: claim_candidates
-- Finds the due jobs of limited lanes that come first among all due jobs of a claim. Locks nothing: the jobs are read before their
-- queues and partitions are locked, and taken afterwards. $2 lanes, and $3 whether each is limited; $4 the maximum number of jobs.
WITH {clock}, wanted AS MATERIALIZED (
  SELECT lanes.lane, lanes.priority, requested.limited, $4::bigint AS most
  FROM unnest($2::integer[], $3::boolean[]) AS requested (lane, limited) JOIN redrive.lanes USING (lane)
  WHERE {lane_is_claimable}
), first AS MATERIALIZED (
  SELECT wanted.priority, wanted.limited, wanted.lane, due.*
  FROM wanted, clock
  CROSS JOIN LATERAL (
    SELECT ready.due, ready.id, ready.partition FROM redrive.ready
    WHERE ready.lane = wanted.lane AND ready.due <= clock.now
    ORDER BY ready.due, ready.id
    LIMIT wanted.most
  ) AS due
  ORDER BY wanted.priority DESC, due.due, due.id
  LIMIT $4::bigint
)
SELECT first.lane, first.due, first.id, first.partition, jobs.strict
FROM first JOIN redrive.jobs USING (id)
WHERE first.limited
ORDER BY first.priority DESC, first.due, first.id;

-- name: next_due
-- Finds when the first job of each queue is due. $1 the lanes of a claim.
SELECT lanes.queue, min(first.due) AS due
FROM unnest($1::integer[]) AS requested (lane)
JOIN redrive.lanes USING (lane)
CROSS JOIN LATERAL (
  SELECT ready.due FROM redrive.ready WHERE ready.lane = requested.lane ORDER BY ready.due, ready.id LIMIT 1
) AS first
GROUP BY lanes.queue;

-- name: apply_claim
-- Applies the decisions of a claim to jobs that this transaction has locked: leases some and charges each an attempt, makes some wait for
-- a slot, delays some, and records the starts that rates count. $1 the time; $2 to $4 lanes, due times and ids of the jobs; $5 the decisions: 0 lease, 1 wait for a
-- slot, 2 delay; $6 until when; $7 and $10 scopes and numbers of their starts; $8 the worker; $9 its lease.
WITH {clock}, decided AS MATERIALIZED (
  SELECT * FROM unnest($2::integer[], $3::bigint[], $4::uuid[], $5::smallint[], $6::bigint[])
    AS decided (lane, due, id, decision, until)
), unready AS (
  DELETE FROM redrive.ready USING decided
  WHERE ready.lane = decided.lane AND ready.due = decided.due AND ready.id = decided.id
  RETURNING ready.*
), moved AS MATERIALIZED (
  SELECT unready.*, decided.decision, decided.until FROM unready JOIN decided USING (id)
), taken AS MATERIALIZED (
  SELECT * FROM moved WHERE decision = 0
),
{lease_taken},
slots AS (
  INSERT INTO redrive.slots (partition, id) SELECT partition, id FROM taken WHERE partition IS NOT NULL
), made_waiting AS (
  INSERT INTO redrive.waiting AS stored (id, due, lane, awaits, strict, partition)
  SELECT moved.id, moved.due, moved.lane, 3, jobs.strict, moved.partition
  FROM moved JOIN redrive.jobs USING (id) WHERE moved.decision = 1
  ON CONFLICT (id) DO UPDATE SET
    due = excluded.due, awaits = 3, strict = excluded.strict, awaits_name = NULL, awaits_branch = NULL, awaits_failures = NULL
), delayed AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, state, progress, awaiting, partition)
  SELECT lane, until, id, lease_ms, state, true, awaiting, partition FROM moved WHERE decision = 2
), progressed AS (
  INSERT INTO redrive.progress (id, began_at, next_run_at)
  SELECT moved.id, moved.due, moved.until FROM moved WHERE moved.decision = 2
  ON CONFLICT (id) DO UPDATE SET next_run_at = excluded.next_run_at
), started AS (
  INSERT INTO redrive.starts (at, scope, jobs) SELECT $1::bigint, * FROM unnest($7::text[], $10::bigint[])
), counted_waiting AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM moved WHERE decision = 1 GROUP BY lane, state
  UNION ALL
  SELECT lane, 3, count(*) FROM moved WHERE decision = 1 GROUP BY lane
)
SELECT
  {leased_columns}
FROM taken
JOIN made ON made.lease_until = $1::bigint + coalesce(taken.lease_ms, $9::bigint)
JOIN redrive.jobs ON jobs.id = taken.id
LEFT JOIN redrive.progress ON progress.id = CASE WHEN taken.progress THEN taken.id END;

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
  partitions.scope,
  (
    SELECT count(*) FROM (
      -- The order makes the planner use the index, here and below. Without it, a scan of the table may seem to end early.
      SELECT FROM redrive.slots WHERE slots.partition = partitions.scope ORDER BY slots.id LIMIT partitions.most
    ) AS running
  ) AS running,
  (
    SELECT count(*) FROM (
      SELECT FROM redrive.ready
      WHERE ready.partition = partitions.scope AND ready.due <= clock.now
        AND NOT coalesce((SELECT jobs.strict FROM redrive.jobs WHERE jobs.id = ready.id), false)
      ORDER BY ready.due
      LIMIT partitions.most
    ) AS claimable
  ) AS claimable,
  first.id AS first, coalesce(first.waits_for_slot, false) AS first_waits,
  waiting.ids, waiting.due
FROM clock CROSS JOIN partitions
LEFT JOIN LATERAL (
  SELECT ordered.id, waiting.awaits = 3 AS waits_for_slot
  FROM redrive.ordered LEFT JOIN redrive.waiting USING (id)
  WHERE ordered.partition = partitions.scope
  ORDER BY ordered.id LIMIT 1
) AS first ON true
CROSS JOIN LATERAL (
  SELECT array_agg(waiting.id) AS ids, array_agg(waiting.is_due) AS due
  FROM (
    SELECT each.id, each.due <= clock.now AS is_due FROM redrive.lanes
    CROSS JOIN LATERAL (
      SELECT waiting.id, waiting.due FROM redrive.waiting
      WHERE waiting.partition = partitions.scope AND waiting.lane = lanes.lane AND waiting.awaits = 3 AND NOT waiting.strict
      ORDER BY waiting.due, waiting.id
      LIMIT partitions.next
    ) AS each
    WHERE lanes.queue = partitions.queue
    ORDER BY lanes.priority DESC, each.due, each.id
    LIMIT partitions.next
  ) AS waiting
) AS waiting;

-- name: give_slots
-- Ends the wait of jobs ($1) that still wait for a slot. Neither their due time nor their time budget changes.
WITH unwaiting AS (
  DELETE FROM redrive.waiting WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[]))) AND awaits = 3 RETURNING waiting.*
), made_ready AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, progress, partition)
  SELECT
    unwaiting.lane, unwaiting.due, unwaiting.id, jobs.lease_ms,
    coalesce((SELECT true FROM redrive.progress WHERE progress.id = unwaiting.id), false), unwaiting.partition
  FROM unwaiting JOIN redrive.jobs USING (id)
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT unwaiting.lane, changes.state, changes.sign * count(*)
  FROM unwaiting, (VALUES (3::smallint, -1), (0::smallint, 1)) AS changes (state, sign)
  GROUP BY unwaiting.lane, changes.state, changes.sign
)
SELECT id FROM unwaiting;
