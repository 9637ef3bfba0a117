-- Limits of queues and of partition keys: which jobs may start, and which get the slots that others free.
--
-- $1 is the current time in every statement that uses {clock}: NULL for the server's clock.

-- fragment: first_running
-- A lower bound for the ids of running jobs, or no row if no job runs. A count that starts there does not walk over the dead
-- entries of jobs that have ended, which vacuum cannot remove while a transaction is open.
first_running AS MATERIALIZED (
  SELECT claims.first_id AS id FROM redrive.claims ORDER BY claims.first_id LIMIT 1
)

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
-- in the partitions with a strict order ($8). Running jobs are counted up to $7. A partition returns its number only if it is
-- greater than $9, and none if $7 is NULL. Must start after the locks are held, because earlier counts are out of date. $10 whether to scan all index entries of the
-- partitions. The result is the same, but the server then marks dead entries, and later removes them.
WITH {clock}, queues AS MATERIALIZED (
  SELECT * FROM unnest($3::text[], $4::bigint[]) AS queues (scope, span)
), partitions AS MATERIALIZED (
  SELECT * FROM unnest($5::text[], $6::bigint[], $7::bigint[], $8::boolean[], $9::bigint[])
    AS partitions (scope, span, most, strict, unreported)
), {first_running}
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
SELECT 2, partitions.scope, running.jobs, NULL, NULL, NULL
FROM partitions
CROSS JOIN LATERAL (
  SELECT count(*) AS jobs FROM (
    -- The order makes the planner use the index. Without it, a scan of the table may seem to end early.
    SELECT FROM redrive.slots
    WHERE slots.partition = partitions.scope
      AND slots.id >= CASE
        WHEN $10::boolean THEN '00000000-0000-0000-0000-000000000000' ELSE (SELECT first_running.id FROM first_running)
      END
    ORDER BY slots.id LIMIT partitions.most
  ) AS running
) AS running
WHERE partitions.most IS NOT NULL AND running.jobs > partitions.unreported
UNION ALL
SELECT 3, scopes.scope, started.jobs, started.at, NULL, NULL
FROM (SELECT scope, span FROM queues UNION ALL SELECT scope, span FROM partitions) AS scopes, clock
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
WHERE partitions.strict;

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
    SELECT ready.ctid AS row_position, ready.due, ready.id, ready.partition, ready.strict FROM redrive.ready
    WHERE ready.lane = wanted.lane AND ready.due <= clock.now
    ORDER BY ready.due, ready.id
    LIMIT wanted.most
  ) AS due
  ORDER BY wanted.priority DESC, due.due, due.id
  LIMIT $4::bigint
)
SELECT first.row_position, first.id, first.lane, first.partition, first.strict
FROM first
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
-- Applies the decisions of a claim: leases some jobs and charges each an attempt, makes some wait for a slot, delays some, and records
-- the starts that rates count. Changes nothing if one of the jobs is no longer ready, or locked by someone else, because the decisions
-- about the others may depend on it. Then it returns the others as `found`, which stay locked. Otherwise it returns the claims that it
-- made, and which of their jobs have a row in progress. $1 the time; $2 and $3 the jobs, and the positions of their rows; $4 those that wait
-- for a slot; $5 those that are delayed, and $6 until when; $7 the queues and partitions whose rates count starts; $8 the worker; $9 its
-- lease.
WITH {clock}, found AS MATERIALIZED (
  SELECT row.position, decided.id FROM unnest($2::uuid[], $3::tid[]) AS decided (id, position)
  -- OFFSET 0 makes the planner look up each row by its position. If the row is gone, another one may be there, even one of the same job.
  CROSS JOIN LATERAL (
    SELECT ready.ctid AS position FROM redrive.ready
    WHERE ready.ctid = decided.position AND ready.id = decided.id AND ready.due <= $1::bigint
    OFFSET 0
    FOR UPDATE SKIP LOCKED
  ) AS row
  -- A move may have sealed the store since the candidates were read.
  WHERE {store_is_not_sealed}
), unready AS (
  DELETE FROM redrive.ready WHERE ctid = ANY (ARRAY(
    SELECT found.position FROM found WHERE (SELECT count(*) FROM found) = cardinality($2::uuid[])
  ))
  RETURNING ready.*
), made_to_wait AS MATERIALIZED (
  SELECT * FROM unready WHERE CASE WHEN cardinality($4::uuid[]) > 0 THEN id IN (SELECT unnest($4::uuid[])) ELSE false END
), postponed AS MATERIALIZED (
  SELECT unready.*, ($6::bigint[])[array_position($5::uuid[], id)] AS until FROM unready
  WHERE CASE WHEN cardinality($5::uuid[]) > 0 THEN id IN (SELECT unnest($5::uuid[])) ELSE false END
), taken AS MATERIALIZED (
  SELECT * FROM unready
  WHERE CASE WHEN cardinality($4::uuid[]) + cardinality($5::uuid[]) > 0
    THEN id NOT IN (SELECT unnest($4::uuid[] || $5::uuid[])) ELSE true END
),
{lease_taken},
slots AS (
  INSERT INTO redrive.slots (partition, id) SELECT partition, id FROM taken WHERE partition IS NOT NULL
), made_waiting AS (
  INSERT INTO redrive.waiting AS stored (id, due, lane, awaits, strict, partition)
  SELECT id, due, lane, 3, strict, partition FROM made_to_wait
  ON CONFLICT (id) DO UPDATE SET
    due = excluded.due, awaits = 3, strict = excluded.strict, awaits_name = NULL, awaits_branch = NULL, awaits_failures = NULL
), delayed AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, state, progress, awaiting, partition, strict)
  SELECT lane, until, id, lease_ms, state, true, awaiting, partition, strict FROM postponed
), progressed AS (
  INSERT INTO redrive.progress (id, began_at, next_run_at)
  SELECT id, due, until FROM postponed
  ON CONFLICT (id) DO UPDATE SET next_run_at = excluded.next_run_at
), started AS (
  INSERT INTO redrive.starts (at, scope, jobs)
  SELECT $1::bigint, started.scope, count(*)
  FROM (
    SELECT lanes.queue AS scope FROM taken JOIN redrive.lanes USING (lane)
    UNION ALL
    SELECT taken.partition FROM taken
  ) AS started
  WHERE cardinality($7::text[]) > 0 AND started.scope = ANY ($7::text[])
  GROUP BY started.scope
), counted_waiting AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM made_to_wait GROUP BY lane, state
  UNION ALL
  SELECT lane, 3, count(*) FROM made_to_wait GROUP BY lane
)
SELECT
  ARRAY(SELECT made.claim FROM made) AS claims, ARRAY(SELECT taken.id FROM taken WHERE taken.progress) AS with_progress,
  CASE WHEN NOT EXISTS (SELECT FROM unready) THEN ARRAY(SELECT found.id FROM found) END AS found;

-- name: read_leased
-- Reads the jobs of claims ($1) that this node has made. $2 those of the jobs that have a row in progress. Without locks.
SELECT
  {leased_columns}
FROM redrive.claims AS made CROSS JOIN unnest(made.ids) AS listed (id)
-- OFFSET 0 makes the planner look up each job by the index. A plan that is stored while the table is empty would read all of it.
CROSS JOIN LATERAL (SELECT * FROM redrive.jobs WHERE jobs.id = listed.id OFFSET 0) AS jobs
-- Without a row in progress, the index is not read.
LEFT JOIN LATERAL (
  SELECT * FROM redrive.progress WHERE progress.id = CASE WHEN listed.id = ANY ($2::uuid[]) THEN listed.id END OFFSET 0
) AS progress ON true
WHERE made.claim = ANY ($1::bigint[]);

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

-- name: find_slot_waiters
-- Finds out whether a job waits for a slot in any partition, or has a strict order. Most often none does. Takes no lock. A job that starts to
-- wait at the same time is not missed: the claim that made it wait looks for free slots after its commit.
SELECT
  -- The order makes the planner use the index. EXISTS would ignore it.
  coalesce((
    SELECT true FROM redrive.waiting WHERE waiting.awaits = 3 AND NOT waiting.strict
    ORDER BY waiting.partition, waiting.lane, waiting.due, waiting.id LIMIT 1
  ), false)
  OR coalesce((SELECT true FROM redrive.ordered ORDER BY ordered.partition, ordered.id LIMIT 1), false) AS found;

-- name: find_partitions_to_serve
-- Finds those of the partitions ($1) in which a job waits for a slot, or has a strict order. Takes no lock, like the statement above.
SELECT partitions.scope FROM unnest($1::text[]) AS partitions (scope)
WHERE coalesce((
    -- The order makes the planner use the index, here and below.
    SELECT true FROM redrive.waiting
    WHERE waiting.partition = partitions.scope AND waiting.awaits = 3 AND NOT waiting.strict
    ORDER BY waiting.lane, waiting.due, waiting.id LIMIT 1
  ), false)
  OR coalesce((
    SELECT true FROM redrive.ordered WHERE ordered.partition = partitions.scope ORDER BY ordered.id LIMIT 1
  ), false);

-- name: read_partitions
-- Reads in one snapshot the numbers that decide which jobs of partitions ($2) get free slots: how many jobs run, and how many
-- without strict order could be claimed now, both counted up to $3; the first job in strict order; and the waiting jobs in order,
-- at most $4. Must start after the locks are held, because earlier counts are out of date.
WITH {clock}, partitions AS MATERIALIZED (
  SELECT scope, split_part(scope, E'\x1f', 1) AS queue, most, next
  FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS partitions (scope, most, next)
), {first_running}
SELECT
  partitions.scope,
  (
    SELECT count(*) FROM (
      -- The order makes the planner use the index, here and below. Without it, a scan of the table may seem to end early.
      SELECT FROM redrive.slots
      WHERE slots.partition = partitions.scope AND slots.id >= (SELECT first_running.id FROM first_running)
      ORDER BY slots.id LIMIT partitions.most
    ) AS running
  ) AS running,
  (
    SELECT count(*) FROM (
      SELECT FROM redrive.ready
      WHERE ready.partition = partitions.scope AND ready.due <= clock.now AND NOT ready.strict
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
  INSERT INTO redrive.ready (lane, due, id, lease_ms, progress, partition, strict)
  SELECT
    unwaiting.lane, unwaiting.due, unwaiting.id, jobs.lease_ms,
    coalesce((SELECT true FROM redrive.progress WHERE progress.id = unwaiting.id), false), unwaiting.partition, unwaiting.strict
  FROM unwaiting JOIN redrive.jobs USING (id)
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT unwaiting.lane, changes.state, changes.sign * count(*)
  FROM unwaiting, (VALUES (3::smallint, -1), (0::smallint, 1)) AS changes (state, sign)
  GROUP BY unwaiting.lane, changes.state, changes.sign
)
SELECT id, lane, due FROM unwaiting;
