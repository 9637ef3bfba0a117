-- Durable jobs: steps, signals, and the jobs that wait for something.
--
-- $1 is the current time in every statement that uses {clock}: NULL for the server's clock.

-- name: recall
-- Reads the steps of a job in their order. $1 the job; $2 the first place; $3 the maximum number of steps.
SELECT place, kind, name, value FROM redrive.steps WHERE job = $1 AND place >= $2
ORDER BY place LIMIT $3;

-- name: remember
-- Stores steps, each once, under leases that still hold. Locks their claims first, so that a reclaim that commits meanwhile shuts out
-- the old holder. Of several steps for one place, the first is stored. `kept` is false for a place that was taken before; the
-- statement may not see the step that took it. $1 and $2 the leases; $3 to $6 the steps.
WITH steps AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::smallint[], $5::text[], $6::bytea[])
    WITH ORDINALITY AS steps (job, epoch, place, kind, name, value, ordinal)
), given AS MATERIALIZED (
  SELECT DISTINCT job AS id, epoch FROM steps
),
{held_leases},
kept AS (
  INSERT INTO redrive.steps (job, place, kind, name, value)
  SELECT steps.job, steps.place, steps.kind, steps.name, steps.value
  FROM steps JOIN held ON held.id = steps.job AND held.epoch = steps.epoch
  ORDER BY steps.ordinal
  ON CONFLICT DO NOTHING
  RETURNING job, place
)
SELECT steps.ordinal, kept.place IS NOT NULL AS kept
FROM steps
JOIN held ON held.id = steps.job AND held.epoch = steps.epoch
LEFT JOIN kept ON kept.job = steps.job AND kept.place = steps.place;

-- name: find_steps
-- Reads the steps at places that were taken. $1 jobs; $2 places.
SELECT given.ordinal, steps.place, steps.kind, steps.name, steps.value
FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS given (job, place, ordinal)
JOIN redrive.steps ON steps.job = given.job AND steps.place = given.place;

-- name: lock_steps
-- Locks jobs until the end of the transaction, so that nobody else stores steps with children or signals for them. $1 the class of the
-- locks; $2 the locks, in order.
SELECT pg_advisory_xact_lock($1::integer, stripe) FROM unnest($2::integer[]) AS stripe;

-- name: lock_leases
-- Locks the claims of leases that still hold, so that the next statements of the transaction can rely on them. Sets has_children
-- for jobs that get children ($6): a statement that ends such a job waits for this transaction, and then finds the children. A job
-- with a requested cancel gets no children. Locks nothing if a child is due too far ahead. $2 the horizon; $3 the latest due
-- time of a child; $4 and $5 the leases.
WITH {clock}, late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), given AS MATERIALIZED (
  SELECT id, epoch, bool_or(children) AS children
  FROM unnest($4::uuid[], $5::bigint[], $6::boolean[]) AS leases (id, epoch, children)
  WHERE NOT EXISTS (SELECT FROM late)
  GROUP BY id, epoch
),
{held_leases},
became_parents AS (
  INSERT INTO redrive.progress AS stored (id, began_at, next_run_at, has_children)
  SELECT jobs.id, jobs.due, jobs.due, true FROM held JOIN redrive.jobs USING (id)
  WHERE held.children AND NOT held.cancelling
  ORDER BY jobs.id
  ON CONFLICT (id) DO UPDATE SET has_children = true WHERE stored.epoch < (SELECT max(held.epoch) FROM held WHERE held.id = stored.id)
  RETURNING id
)
SELECT EXISTS (SELECT FROM late) AS late, held.id, held.epoch, held.cancelling AS cancel_requested
FROM clock LEFT JOIN held ON NOT held.children OR held.cancelling OR held.id IN (SELECT became_parents.id FROM became_parents);

-- name: remember_signal
-- Takes a signal and stores it as a step, once, unless the place has a step. The transaction must have locked the job, so that
-- nobody else takes its signals. The value moves from the signal to the step. $1 the job; $2 to $5 the step; $6 the signal.
WITH taken AS (
  UPDATE redrive.signals SET taken = true, value = ''
  WHERE job = $1::uuid AND id = $6::uuid AND NOT taken
    AND NOT EXISTS (SELECT FROM redrive.steps WHERE steps.job = $1::uuid AND steps.place = $2::bigint)
  RETURNING id
)
INSERT INTO redrive.steps (job, place, kind, name, value)
SELECT $1::uuid, $2::bigint, $3::smallint, $4::text, $5::bytea FROM taken
RETURNING place;

-- name: signal
-- Stores signals for jobs that have not ended, each id once, in the given order. The lock only keeps the jobs from being removed
-- meanwhile. $1 jobs; $2 ids; $3 names; $4 values.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[])
    WITH ORDINALITY AS given (job, id, name, value, ordinal)
), locked AS MATERIALIZED (
  SELECT id FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR KEY SHARE
), found AS MATERIALIZED (
  -- The callers only ask whether a job has ended, and how.
  SELECT locked.id, coalesce((SELECT ended.state FROM redrive.ended WHERE ended.id = locked.id), 0::smallint) AS state FROM locked
), kept AS (
  INSERT INTO redrive.signals (job, id, name, value)
  SELECT given.job, given.id, given.name, given.value FROM given JOIN found ON found.id = given.job
  WHERE found.state < 4
  ORDER BY given.ordinal
  ON CONFLICT DO NOTHING
)
SELECT id, state FROM found;

-- name: pending_signals
-- Reads the signals with the given names that no step has taken, in the order of their arrival. $1 the job; $2 names; $3 the maximum
-- number of signals.
SELECT id, name, value FROM redrive.signals
WHERE job = $1::uuid AND name = ANY ($2::text[]) AND NOT taken
ORDER BY seq
LIMIT $3::bigint;

-- name: skip_signals
-- Marks signals as taken while the lease of their job holds, and returns the job in that case. The lock keeps others from taking over
-- the lease meanwhile. $1 and $2 the lease; $3 the signals.
WITH given AS MATERIALIZED (
  SELECT $1::uuid AS id, $2::bigint AS epoch
),
{held_leases},
skipped AS (
  UPDATE redrive.signals SET taken = true, value = ''
  FROM held
  WHERE signals.job = held.id AND signals.id = ANY ($3::uuid[]) AND NOT signals.taken
)
SELECT id FROM held;

-- fragment: of_fan_out
-- The children of one branch (`parts`). The planner takes two comparisons of rows for many rows, and so reads the index in order. It
-- would answer an equality by a bitmap, which reads the dead index entries of all ended children.
(children.parent, children.branch) >= (parts.id, parts.branch) AND (children.parent, children.branch) <= (parts.id, parts.branch)

-- fragment: resume_awaiting
-- Makes awaiting jobs due whose condition is met in the snapshot of this statement, each once: the statement that removes the row of a waiting
-- job decides about it. The time spent waiting does not count against the time budget. The end of a pause does not bring forward a
-- job that is due later. A job with an awaited child that has not ended becomes due a millisecond before the start of its last attempt, and so
-- before that child. Free slots are decided elsewhere, under locks (limits.sql).
--
-- A fan-out with too many failed children must first end its other children. While the awaiting jobs have such fan-outs, `ending` lists them
-- and nothing is resumed. The conditions are scalar subqueries, because the planner would answer EXISTS by reading whole tables.
parts AS MATERIALIZED (
  SELECT id, paused, awaits AS code, awaits_name AS name, awaits_branch AS branch, awaits_failures AS failures
  FROM awaiting WHERE awaits <> 4
  UNION ALL
  SELECT
    awaiting.id, false, CASE WHEN part ->> 'signal' IS NULL THEN 1 ELSE 0 END, part ->> 'signal',
    -- Branches are unsigned in Rust. The cast keeps their bits.
    (part ->> 'branch')::bigint::bit(32)::integer, (part ->> 'failures')::bigint
  FROM awaiting CROSS JOIN LATERAL json_array_elements(CASE WHEN awaiting.awaits = 4 THEN awaiting.awaits_name::json END) AS part
), children AS MATERIALIZED (
  SELECT
    parts.id, parts.branch,
    coalesce((
      SELECT true FROM redrive.children
      WHERE {of_fan_out} AND children.stage < 2
      -- In ascending order the scan would cross the dead index entries of all ended children before the first live one: the oldest
      -- children end first.
      ORDER BY children.parent DESC, children.branch DESC, children.id DESC
      LIMIT 1
    ), false) AS live,
    coalesce((
      SELECT true FROM redrive.children
      WHERE {of_fan_out} AND children.stage = 2
      ORDER BY children.parent, children.branch, children.id
      OFFSET parts.failures LIMIT 1
    ), false) AS failed
  FROM parts WHERE parts.code = 1
), ending AS MATERIALIZED (
  SELECT parts.id, array_agg(parts.branch) AS branches FROM children AS parts
  WHERE parts.live AND parts.failed AND coalesce((
    SELECT true FROM redrive.children
    WHERE {of_fan_out} AND children.stage = 0 AND NOT children.detached
    ORDER BY children.parent DESC, children.branch DESC, children.id DESC
    LIMIT 1
  ), false)
  GROUP BY parts.id
), met AS MATERIALIZED (
  SELECT awaiting.id, bool_or(parts.before_children) AS before_children
  FROM awaiting JOIN (
    SELECT
      parts.id, false AS before_children,
      CASE parts.code
        WHEN 0 THEN coalesce((
          SELECT true FROM redrive.signals
          WHERE signals.job = parts.id AND signals.name = parts.name AND NOT signals.taken
          ORDER BY signals.seq
          LIMIT 1
        ), false)
        ELSE parts.code = 2 AND NOT parts.paused
      END AS is_met
    FROM parts WHERE parts.code <> 1
    UNION ALL
    SELECT children.id, children.live, children.failed OR NOT children.live FROM children
  ) AS parts USING (id)
  WHERE NOT EXISTS (SELECT FROM ending)
  GROUP BY awaiting.id
  HAVING bool_or(parts.is_met)
), timers AS MATERIALIZED (
  -- A claim whose timeout ends the wait has locked this row.
  SELECT ready.ctid AS position FROM redrive.ready
  JOIN awaiting ON ready.lane = awaiting.lane AND ready.due = awaiting.next_run_at AND ready.id = awaiting.id
  WHERE awaiting.state < 2 AND awaiting.id IN (SELECT met.id FROM met)
  ORDER BY ready.id
  FOR UPDATE OF ready SKIP LOCKED
), unready AS (
  DELETE FROM redrive.ready WHERE ctid = ANY (ARRAY(SELECT timers.position FROM timers)) RETURNING ready.id
), unwaiting AS (
  DELETE FROM redrive.waiting USING awaiting JOIN met USING (id) LEFT JOIN unready USING (id)
  WHERE waiting.id = awaiting.id AND waiting.awaits = awaiting.awaits AND (awaiting.state = 3 OR unready.id IS NOT NULL)
  RETURNING waiting.id, waiting.awaits, awaiting.lane, awaiting.state, awaiting.next_run_at, awaiting.partition, met.before_children
), progressed AS (
  UPDATE redrive.progress SET
    next_run_at = CASE
      WHEN unwaiting.awaits = 2 THEN greatest(progress.next_run_at, clock.now)
      WHEN unwaiting.before_children THEN least(clock.now, progress.started_at - 1)
      ELSE clock.now
    END,
    began_at = progress.began_at + CASE
      WHEN unwaiting.awaits = 2 THEN greatest(clock.now - progress.next_run_at, 0) ELSE clock.now - progress.next_run_at
    END
  FROM clock, unwaiting
  WHERE progress.id = unwaiting.id
  RETURNING progress.id, progress.next_run_at
), resumed AS MATERIALIZED (
  SELECT unwaiting.*, progressed.next_run_at AS due, jobs.lease_ms, jobs.strict
  FROM unwaiting JOIN progressed USING (id) JOIN redrive.jobs USING (id)
), made_ready AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, state, progress, partition, strict)
  SELECT lane, due, id, lease_ms, CASE WHEN state = 3 THEN 0 ELSE state END, true, partition, strict FROM resumed
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT resumed.lane, changes.state, changes.sign * count(*)
  FROM resumed, (VALUES (3::smallint, -1), (0::smallint, 1)) AS changes (state, sign)
  WHERE resumed.state = 3
  GROUP BY resumed.lane, changes.state, changes.sign
)
SELECT
  awaiting.id, resumed.id IS NOT NULL AS resumed, awaiting.partition, awaiting.strict, awaiting.awaits = 3 AS waits_for_slot,
  awaiting.state = 3 AND awaiting.next_run_at <= clock.now AS due,
  awaiting.parent IS NOT NULL AS is_child, ending.branches AS ending, resumed.lane,
  CASE WHEN resumed.due < clock.now THEN resumed.due END AS early, marks.tree
-- If no job waits, the answer is one row without a job.
FROM clock CROSS JOIN marks LEFT JOIN awaiting ON true LEFT JOIN resumed USING (id) LEFT JOIN ending USING (id)
ORDER BY awaiting.id

-- fragment: awaiting_columns
-- The columns of waiting jobs that decide whether they are resumed.
SELECT
    waiting.id, waiting.lane, waiting.awaits, waiting.awaits_name, waiting.awaits_branch, waiting.awaits_failures, waiting.strict,
    waiting.partition, jobs.parent, coalesce(progress.paused, false) AS paused,
    coalesce(progress.next_run_at, jobs.due) AS next_run_at, coalesce(ready.state, 3::smallint) AS state
  FROM redrive.waiting
  -- OFFSET 0 makes the server look up each job by its indexes. A merge join would read the tables from their beginning.
  CROSS JOIN LATERAL (SELECT jobs.parent, jobs.due FROM redrive.jobs WHERE jobs.id = waiting.id OFFSET 0) AS jobs
  LEFT JOIN LATERAL (
    SELECT progress.paused, progress.next_run_at FROM redrive.progress WHERE progress.id = waiting.id OFFSET 0
  ) AS progress ON true
  LEFT JOIN LATERAL (
    SELECT ready.state FROM redrive.ready
    WHERE ready.lane = waiting.lane AND ready.due = coalesce(progress.next_run_at, jobs.due) AND ready.id = waiting.id
    OFFSET 0
  ) AS ready ON true

-- name: resume
-- Resumes the given jobs if their conditions are met. $2 the ids.
WITH {clock}, awaiting AS MATERIALIZED (
  {awaiting_columns}
  WHERE waiting.id = ANY (ARRAY(SELECT unnest($2::uuid[])))
), marks AS (
  SELECT NULL::bigint AS tree
),
{resume_awaiting};

-- name: sweep
-- Resumes the next jobs that wait for something, in the order of their ids, if their conditions are met. Also returns the number of a
-- job tree that still has marks. $2 the id to continue after, or NULL; $3 the maximum number of jobs.
WITH {clock}, next_waiting AS MATERIALIZED (
  SELECT id FROM redrive.waiting WHERE $2::uuid IS NULL OR id > $2::uuid ORDER BY id LIMIT $3::bigint
), awaiting AS MATERIALIZED (
  {awaiting_columns}
  WHERE waiting.id = ANY (ARRAY(SELECT next_waiting.id FROM next_waiting))
), marks AS (
  SELECT (SELECT tree FROM redrive.closing LIMIT 1) AS tree
),
{resume_awaiting};
