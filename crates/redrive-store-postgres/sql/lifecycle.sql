-- The life of a job until it runs: enqueue and claim.
--
-- $1 is the current time in every statement that uses {now} or {clock}: NULL for the server's clock.

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
  {place_new_jobs}
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
      WHEN 0 THEN held.state < 4
      WHEN 1 THEN coalesce(uniques.until > clock.now, held.state < 4)
      ELSE false
    END AS blocked,
    given.rule = 2 AND held.state = 0 AND held.epoch = 0 AS replaceable, held.lane AS holder_lane, held.next_run_at AS holder_due
  FROM clock, given
  LEFT JOIN redrive.jobs AS same ON same.id = given.id
  LEFT JOIN redrive.uniques
    ON uniques.tenant = given.tenant AND uniques.kind = given.kind AND uniques.key = given.unique_key
  CROSS JOIN LATERAL (
    SELECT
      coalesce(max(all_jobs.state), 4) AS state, coalesce(max(all_jobs.epoch), 0) AS epoch, max(all_jobs.lane) AS lane,
      max(all_jobs.next_run_at) AS next_run_at
    FROM redrive.all_jobs WHERE all_jobs.id = uniques.job
  ) AS held
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
  {place_new_jobs}
), replaceable AS MATERIALIZED (
  -- The statement that removes the row of a claimable job decides about the job.
  SELECT ready.ctid AS position, ready.id, seen.place FROM redrive.ready
  JOIN seen ON ready.lane = seen.holder_lane AND ready.due = seen.holder_due AND ready.id = seen.holder
  WHERE seen.replaceable AND NOT seen.known AND NOT EXISTS (SELECT FROM late)
  ORDER BY ready.id
  FOR UPDATE OF ready
), unready AS (
  DELETE FROM redrive.ready WHERE ctid = ANY (ARRAY(SELECT position FROM replaceable)) RETURNING ready.*
), replaced AS (
  UPDATE redrive.jobs SET
    policy = given.policy, payload = given.payload, target = given.target, metadata = given.metadata,
    timeout_ms = given.timeout_ms, lease_ms = given.lease_ms, due = coalesce(given.at, clock.now + given.after)
  FROM clock, unready JOIN replaceable USING (id) JOIN given USING (place)
  WHERE jobs.id = unready.id
  RETURNING given.place, jobs.id, jobs.due, jobs.lease_ms
), rescheduled AS (
  UPDATE redrive.progress SET began_at = replaced.due, next_run_at = replaced.due FROM replaced WHERE progress.id = replaced.id
), ready_again AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, state, progress, partition, strict)
  SELECT
    unready.lane, replaced.due, unready.id, replaced.lease_ms, unready.state, unready.progress, unready.partition, unready.strict
  FROM unready JOIN replaced USING (id)
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

-- name: use_lane
-- Gives a lane its number, the same for all nodes, and notes that it is in use, and whether it has jobs with partition keys. $1 the
-- time; $2 queue; $3 kind; $4 priority; $5 whether the job has a partition key.
WITH {clock}
INSERT INTO redrive.lanes (queue, kind, priority, partitioned, used_at) SELECT $2, $3, $4, $5, clock.now FROM clock
ON CONFLICT (queue, kind, priority) DO UPDATE SET
  partitioned = lanes.partitioned OR excluded.partitioned, idle = false, used_at = greatest(lanes.used_at, excluded.used_at)
RETURNING lane;

-- name: list_lanes
-- Lists every lane that has a job, or had one within the last day.
SELECT lane, queue, kind, priority, partitioned FROM redrive.lanes;

-- fragment: lanes_to_claim
-- The lanes that a claim reads, highest priority first, each with the position where the scan starts. $2 and $3 queues and
-- kinds, empty for all; $4 the maximum number of jobs to claim; $5 to $7 lanes with their positions. A lane is limited if its queue
-- has limits or its jobs have partition keys. Limited lanes are left out, because limits are checked under locks that this statement
-- does not take. If the caller has not claimed from them before ($10), no lane is read.
lanes_of_claim AS MATERIALIZED (
  SELECT lanes.lane, lanes.priority, coalesce(positions.at, -9223372036854775808) AS from_at,
    coalesce(positions.id, '00000000-0000-0000-0000-000000000000') AS from_id, $4::bigint AS most,
    lanes.partitioned
      OR lanes.queue IN (SELECT records.id FROM redrive.records WHERE records.kind = 'quota' AND records.value IS NOT NULL)
      AS limited
  FROM redrive.lanes
  LEFT JOIN unnest($5::integer[], $6::bigint[], $7::uuid[]) AS positions (lane, at, id) USING (lane)
  WHERE NOT lanes.idle
    AND (cardinality($2::text[]) = 0 OR lanes.queue = ANY ($2::text[]))
    AND (cardinality($3::text[]) = 0 OR lanes.kind = ANY ($3::text[]))
    AND {lane_is_claimable}
), wanted AS MATERIALIZED (
  SELECT * FROM lanes_of_claim
  WHERE NOT limited AND ($10::boolean OR NOT EXISTS (SELECT FROM lanes_of_claim AS others WHERE others.limited))
  ORDER BY priority DESC
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
        SELECT ready.due, ready.id FROM redrive.ready
        WHERE ready.lane = wanted.lane AND ready.due <= clock.now
          AND (ready.due, ready.id) >= (wanted.from_at, wanted.from_id)
        ORDER BY ready.due, ready.id
        LIMIT wanted.most
      ) AS due
      ORDER BY wanted.priority DESC, due.due, due.id
      LIMIT $4::bigint
    ) AS first
    GROUP BY first.lane
  ) AS shares USING (lane)
  ORDER BY wanted.priority DESC
)

-- fragment: claim
-- Removes due jobs from `ready`, at most $4, and adds a claim that lists them: one write, whose fresh number shuts out every earlier
-- holder. Skips rows that someone else has locked. Returns when the next job is due, and whether there are limited lanes.
taken AS (
  DELETE FROM redrive.ready WHERE ctid = ANY (ARRAY(
    SELECT due.position FROM clock, chosen
    CROSS JOIN LATERAL (
      SELECT ready.ctid AS position FROM redrive.ready
      WHERE ready.lane = chosen.lane AND ready.due <= clock.now
        AND (ready.due, ready.id) >= (chosen.from_at, chosen.from_id)
      ORDER BY ready.due, ready.id
      LIMIT chosen.share
      FOR UPDATE SKIP LOCKED
    ) AS due
    LIMIT $4::bigint
  ))
  RETURNING id, lane, due, lease_ms, state, progress, awaiting
),
{lease_taken},
claimed AS (
  SELECT
    {leased_columns}
  FROM clock, taken
  JOIN made ON made.lease_until = (SELECT clock.now FROM clock) + coalesce(taken.lease_ms, $9::bigint)
  -- OFFSET 0 makes the planner look up each job by the index. A plan that is stored while the table is empty would read all of it.
  CROSS JOIN LATERAL (SELECT * FROM redrive.jobs WHERE jobs.id = taken.id OFFSET 0) AS jobs
  -- Without a row in progress, the index is not read.
  LEFT JOIN LATERAL (
    SELECT * FROM redrive.progress WHERE progress.id = CASE WHEN taken.progress THEN taken.id END OFFSET 0
  ) AS progress ON true
), next AS (
  SELECT min(later.due) AS due
  FROM wanted
  LEFT JOIN LATERAL (
    SELECT taken.due, taken.id FROM taken WHERE taken.lane = wanted.lane
    ORDER BY taken.due DESC, taken.id DESC LIMIT 1
  ) AS last ON true
  CROSS JOIN LATERAL (
    SELECT ready.due FROM redrive.ready
    WHERE ready.lane = wanted.lane
      AND (ready.due, ready.id) >= (coalesce(last.due, wanted.from_at), coalesce(last.id, wanted.from_id))
      AND ready.id IS DISTINCT FROM last.id
    ORDER BY ready.due, ready.id
    LIMIT 1
  ) AS later
)
SELECT claimed.*, clock.now, next.due, (SELECT coalesce(bool_or(limited), false) FROM lanes_of_claim) AS limited
FROM clock CROSS JOIN next LEFT JOIN claimed ON true

-- name: claim_whole_lanes
-- Claims from lanes of which no two have the same priority.
WITH {clock}, {lanes_to_claim},
{whole_lanes},
{claim};

-- name: claim_by_due_time
-- Claims from lanes of which several have the same priority.
WITH {clock}, {lanes_to_claim},
{lanes_by_due_time},
{claim};
