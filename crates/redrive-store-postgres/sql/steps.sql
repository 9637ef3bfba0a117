-- Durable jobs: steps, signals, and the jobs that wait for something.
--
-- $1 is the current time in every statement that uses {clock}: NULL for the server's clock. Statements that write under a
-- lease compare the state as an integer, so that the planner does not use the index of leases, which may be full of dead
-- entries that the planner does not know of.

-- name: recall
-- Reads the steps of a job in their order. $1 the job; $2 the first place; $3 the maximum number of steps.
SELECT place, kind, name, value FROM redrive.steps WHERE job = $1 AND place >= $2
ORDER BY place LIMIT $3;

-- name: remember
-- Stores steps, each once, under leases that still hold. Locks the jobs first, in the order of their ids, so that a reclaim that
-- commits meanwhile shuts out the old holder. Of several steps for one place, the first is stored. `kept` is false for a place that
-- was taken before; the statement may not see the step that took it. $1 and $2 the leases; $3 to $6 the steps.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::smallint[], $5::text[], $6::bytea[])
    WITH ORDINALITY AS given (job, epoch, place, kind, name, value, ordinal)
), leases AS MATERIALIZED (
  SELECT DISTINCT job, epoch FROM given
), held AS MATERIALIZED (
  SELECT jobs.id AS job, jobs.epoch FROM redrive.jobs JOIN leases ON leases.job = jobs.id AND leases.epoch = jobs.epoch
  WHERE jobs.state::integer = 2
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), kept AS (
  INSERT INTO redrive.steps (job, place, kind, name, value)
  SELECT job, place, kind, name, value FROM given JOIN held USING (job, epoch)
  ORDER BY ordinal
  ON CONFLICT DO NOTHING
  RETURNING job, place
)
SELECT given.ordinal, kept.place IS NOT NULL AS kept
FROM given
JOIN held USING (job, epoch)
LEFT JOIN kept ON kept.job = given.job AND kept.place = given.place;

-- name: find_steps
-- Reads the steps at places that were taken. $1 jobs; $2 places.
SELECT given.ordinal, steps.place, steps.kind, steps.name, steps.value
FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS given (job, place, ordinal)
JOIN redrive.steps ON steps.job = given.job AND steps.place = given.place;

-- name: lock_leases
-- Locks the jobs whose leases still hold, so that the next statements of the transaction can rely on them. Sets has_children
-- on jobs that get children ($6): a statement that ends such a job waits for this transaction, and then finds the children. A job
-- with a requested cancel gets no children. Locks nothing if a child is due too far ahead. $2 the horizon; $3 the latest due
-- time of a child; $4 and $5 the leases.
WITH {clock}, late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), leases AS MATERIALIZED (
  SELECT id, epoch, bool_or(children) AS children
  FROM unnest($4::uuid[], $5::bigint[], $6::boolean[]) AS leases (id, epoch, children)
  GROUP BY id, epoch
), held AS MATERIALIZED (
  SELECT jobs.id, jobs.epoch, jobs.cancel_requested, leases.children AND NOT jobs.has_children AS becomes_parent
  FROM redrive.jobs JOIN leases ON leases.id = jobs.id AND leases.epoch = jobs.epoch
  WHERE jobs.state::integer = 2 AND NOT EXISTS (SELECT FROM late)
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), became_parents AS (
  UPDATE redrive.jobs SET has_children = true
  WHERE id = ANY (ARRAY(SELECT held.id FROM held WHERE held.becomes_parent AND NOT held.cancel_requested))
)
SELECT EXISTS (SELECT FROM late) AS late, held.id, held.epoch, held.cancel_requested FROM clock LEFT JOIN held ON true;

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
), found AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR KEY SHARE
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
WITH held AS MATERIALIZED (
  SELECT id FROM redrive.jobs WHERE id = $1::uuid AND epoch = $2::bigint AND state::integer = 2 FOR NO KEY UPDATE
), skipped AS (
  UPDATE redrive.signals SET taken = true, value = ''
  FROM held
  WHERE signals.job = held.id AND signals.id = ANY ($3::uuid[]) AND NOT signals.taken
)
SELECT id FROM held;

-- fragment: resume_awaiting
-- Makes awaiting jobs due whose condition is met in the snapshot of this statement, each once: a job that waits for something
-- else by the time of the write is not changed. The time spent waiting does not count against the time budget. The end of a pause does
-- not bring forward a job that is due later. A job with an awaited child that has not ended becomes due a millisecond before the
-- start of its last attempt, and so before that child. Free slots are decided elsewhere, under locks (limits.sql).
--
-- A fan-out with too many failed children must first end its other children. While the awaiting jobs have such fan-outs, `ending` lists them
-- and nothing is resumed. The conditions are scalar subqueries, because the planner would answer EXISTS by reading whole tables.
parts AS MATERIALIZED (
  SELECT id, held, awaits AS code, awaits_name AS name, awaits_branch AS branch, awaits_failures AS failures
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
      SELECT true FROM redrive.jobs
      WHERE jobs.parent = parts.id AND jobs.branch = parts.branch AND jobs.state < 4
      -- In ascending order the scan would cross the dead index entries of all claimed children before the first live one.
      ORDER BY jobs.state DESC
      LIMIT 1
    ), false) AS live,
    coalesce((
      SELECT true FROM redrive.jobs
      WHERE jobs.parent = parts.id AND jobs.branch = parts.branch AND jobs.state > 4
      OFFSET parts.failures LIMIT 1
    ), false) AS failed
  FROM parts WHERE parts.code = 1
), ending AS MATERIALIZED (
  SELECT children.id, array_agg(children.branch) AS branches FROM children
  WHERE children.live AND children.failed AND coalesce((
    SELECT true FROM redrive.jobs
    WHERE jobs.parent = children.id AND jobs.branch = children.branch AND jobs.state < 4
      AND NOT jobs.detached AND NOT jobs.cancel_requested
    ORDER BY jobs.state DESC
    LIMIT 1
  ), false)
  GROUP BY children.id
), ready AS MATERIALIZED (
  SELECT awaiting.id, awaiting.epoch, awaiting.awaits, bool_or(parts.before_children) AS before_children
  FROM awaiting JOIN (
    SELECT
      parts.id, false AS before_children,
      CASE parts.code
        WHEN 0 THEN coalesce((
          SELECT true FROM redrive.signals
          WHERE signals.job = parts.id AND signals.name = parts.name AND NOT signals.taken
          LIMIT 1
        ), false)
        ELSE parts.code = 2 AND NOT parts.held
      END AS is_met
    FROM parts WHERE parts.code <> 1
    UNION ALL
    SELECT children.id, children.live, children.failed OR NOT children.live FROM children
  ) AS parts USING (id)
  WHERE NOT EXISTS (SELECT FROM ending)
  GROUP BY awaiting.id, awaiting.epoch, awaiting.awaits
  HAVING bool_or(parts.is_met)
), locked AS MATERIALIZED (
  SELECT jobs.id, jobs.lane, jobs.state, ready.before_children FROM redrive.jobs
  JOIN ready ON ready.id = jobs.id AND ready.epoch = jobs.epoch AND ready.awaits = jobs.awaits
  WHERE jobs.awaits <> 2 OR NOT jobs.held
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), resumed AS (
  UPDATE redrive.jobs SET
    state = CASE WHEN jobs.state = 3 THEN 0 ELSE jobs.state END,
    next_run_at = CASE
      WHEN jobs.awaits = 2 THEN greatest(jobs.next_run_at, clock.now)
      WHEN locked.before_children THEN least(clock.now, jobs.started_at - 1)
      ELSE clock.now
    END,
    began_at = jobs.began_at
      + CASE WHEN jobs.awaits = 2 THEN greatest(clock.now - jobs.next_run_at, 0) ELSE clock.now - jobs.next_run_at END,
    awaits = NULL
  FROM clock, locked
  WHERE jobs.id = locked.id
  RETURNING jobs.id, jobs.lane, CASE WHEN jobs.next_run_at < clock.now THEN jobs.next_run_at END AS early
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT locked.lane, changes.state, changes.sign * count(*)
  FROM locked, (VALUES (3::smallint, -1), (0::smallint, 1)) AS changes (state, sign)
  WHERE locked.state = 3
  GROUP BY locked.lane, changes.state, changes.sign
)
SELECT
  awaiting.id, resumed.id IS NOT NULL AS resumed, awaiting.partition, awaiting.strict, awaiting.awaits = 3 AS waits_for_slot,
  awaiting.state = 3 AND awaiting.next_run_at <= clock.now AS due,
  -- Whether this statement made the job claimable.
  resumed.id IS NOT NULL AND CASE awaiting.awaits
    WHEN 2 THEN awaiting.state = 3 AND awaiting.next_run_at <= clock.now
    ELSE awaiting.state = 3 OR awaiting.next_run_at > clock.now
  END AS became_claimable,
  awaiting.parent IS NOT NULL AS is_child, ending.branches AS ending, resumed.lane, resumed.early, marks.tree
-- If no job waits, the answer is one row without a job.
FROM clock CROSS JOIN marks LEFT JOIN awaiting ON true LEFT JOIN resumed USING (id) LEFT JOIN ending USING (id)
ORDER BY awaiting.id

-- name: resume
-- Resumes the given jobs if their conditions are met. $2 the ids.
WITH {clock}, awaiting AS MATERIALIZED (
  SELECT
    id, epoch, held, awaits, awaits_name, awaits_branch, awaits_failures, state, next_run_at, partition, strict, parent
  FROM redrive.jobs
  WHERE id = ANY ($2::uuid[]) AND awaits IS NOT NULL
), marks AS (
  SELECT NULL::bigint AS tree
),
{resume_awaiting};

-- name: sweep
-- Resumes the next jobs that wait for something, in the order of their ids, if their conditions are met. Also returns the number of a
-- job tree that still has marks. $2 the id to continue after, or NULL; $3 the maximum number of jobs.
WITH {clock}, awaiting AS MATERIALIZED (
  SELECT
    id, epoch, held, awaits, awaits_name, awaits_branch, awaits_failures, state, next_run_at, partition, strict, parent
  FROM redrive.jobs
  WHERE awaits IS NOT NULL AND ($2::uuid IS NULL OR id > $2::uuid)
  ORDER BY id
  LIMIT $3::bigint
), marks AS (
  SELECT (SELECT tree FROM redrive.closing LIMIT 1) AS tree
),
{resume_awaiting};
