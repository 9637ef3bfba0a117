-- Operator actions: cancel (with all descendants), redrive, run now, discard, pause, forget.
--
-- $1 is the current time in every statement that uses {clock}: NULL for the server's clock.

-- fragment: cancel_found
-- Ends the found jobs that no worker holds, and requests a cancel of those that run. The workers learn of it when they extend or
-- settle, and the jobs get no more children. A job that may have children is marked in the same write, so that a crash cannot leave
-- them live. It may have children if its row says that a step added some, or if it has a live child in the snapshot of this statement.
-- $2 the number of the job tree.
ended AS (
  -- The array makes the planner use the primary key, whatever number of rows it expects.
  UPDATE redrive.jobs SET
    state = CASE WHEN jobs.state = 2 THEN 2 ELSE 6 END,
    finished_at = CASE WHEN jobs.state = 2 THEN NULL ELSE clock.now END,
    awaits = NULL,
    cancel_requested = jobs.cancel_requested OR jobs.state = 2
  FROM clock
  WHERE jobs.id = ANY (ARRAY(SELECT id FROM found WHERE state < 4 AND NOT (state = 2 AND cancel_requested)))
), marked AS (
  INSERT INTO redrive.closing (tree, job)
  SELECT $2::bigint, found.id FROM found
  WHERE found.state < 4 AND (
    found.has_children
    OR coalesce((SELECT true FROM redrive.jobs WHERE jobs.parent = found.id AND jobs.state < 4 LIMIT 1), false)
  )
  RETURNING mark
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM found WHERE state IN (0, 1, 3) GROUP BY lane, state
  UNION ALL
  SELECT lane, 6, count(*) FROM found WHERE state IN (0, 1, 3) GROUP BY lane
)
SELECT
  found.id, found.state, found.partition, found.strict, found.state < 2 AND found.next_run_at <= clock.now AS due,
  rest.more, EXISTS (SELECT FROM marked) AS marked
FROM clock CROSS JOIN rest LEFT JOIN found ON true
ORDER BY found.id

-- name: cancel
-- Cancels the jobs with the given ids, locked in the order of their ids. $3 the ids.
WITH {clock}, found AS MATERIALIZED (
  SELECT id, lane, state, next_run_at, partition, strict, cancel_requested, has_children FROM redrive.jobs
  WHERE id = ANY ($3::uuid[])
  ORDER BY id
  FOR NO KEY UPDATE
), rest AS (
  SELECT false AS more
),
{cancel_found};

-- name: cancel_branches
-- Cancels the next attached children of fan-outs, locked in the order of their ids. $3 and $4 parents and branches; $5 the maximum
-- number of children. `more` says whether there may be others.
WITH {clock}, next_children AS MATERIALIZED (
  SELECT children.id FROM unnest($3::uuid[], $4::integer[]) AS branches (parent, branch)
  CROSS JOIN LATERAL (
    SELECT jobs.id FROM redrive.jobs
    WHERE jobs.parent = branches.parent AND jobs.branch = branches.branch AND jobs.state < 4
      AND NOT jobs.detached AND NOT jobs.cancel_requested
    LIMIT $5::bigint
  ) AS children
  LIMIT $5::bigint
), found AS MATERIALIZED (
  SELECT id, lane, state, next_run_at, partition, strict, cancel_requested, has_children FROM redrive.jobs
  WHERE id = ANY (ARRAY(SELECT id FROM next_children)) AND state < 4 AND NOT cancel_requested
  ORDER BY id
  FOR NO KEY UPDATE
), rest AS (
  SELECT count(*) >= $5::bigint AS more FROM next_children
),
{cancel_found};

-- name: cancel_descendants
-- Cancels the next children of the marked jobs of a tree, locked in the order of their ids. Removes the marks whose
-- children are all among them. $3 the maximum number of marks and children. `more` says whether the tree may have children left.
--
-- No child is missed. A mark was committed after its job was locked, and before the snapshot of this statement. A step that adds
-- children locks the job too. Either the step committed before the mark, and its children are in the snapshot; or it comes later, finds
-- that the job has ended or is asked to end, and adds nothing. A mark is never changed, so that the mark of a later end of
-- the same job stays. A mark counts only while its job has ended or is asked to end: a redriven job keeps its children.
WITH {clock}, seen AS MATERIALIZED (
  SELECT mark FROM redrive.closing WHERE tree = $2::bigint ORDER BY mark LIMIT $3::bigint
), taken AS MATERIALIZED (
  -- A sweep may process the same tree. Whichever of the two waits here finds these marks gone.
  SELECT mark, job FROM redrive.closing
  WHERE tree = $2::bigint AND mark = ANY (ARRAY(SELECT mark FROM seen))
  ORDER BY mark
  FOR UPDATE
), ending AS MATERIALIZED (
  SELECT DISTINCT job, $3::bigint AS most FROM taken
  -- A scalar subquery, not a join. A job that was removed had ended and cannot be redriven.
  WHERE coalesce((SELECT jobs.state > 4 OR jobs.cancel_requested FROM redrive.jobs WHERE jobs.id = taken.job), true)
), next_children AS MATERIALIZED (
  SELECT children.id FROM ending
  -- Leaves out children whose cancel was requested before: that request also ends their descendants.
  CROSS JOIN LATERAL (
    SELECT jobs.id FROM redrive.jobs
    WHERE jobs.parent = ending.job AND jobs.state < 4 AND NOT jobs.detached AND NOT jobs.cancel_requested
    LIMIT ending.most
  ) AS children
  LIMIT $3::bigint
), found AS MATERIALIZED (
  SELECT id, lane, state, next_run_at, partition, strict, cancel_requested, has_children FROM redrive.jobs
  WHERE id = ANY (ARRAY(SELECT id FROM next_children)) AND state < 4 AND NOT cancel_requested
  ORDER BY id
  FOR NO KEY UPDATE
), processed AS (
  DELETE FROM redrive.closing
  WHERE tree = $2::bigint AND mark = ANY (ARRAY(SELECT mark FROM taken)) AND (SELECT count(*) FROM next_children) < $3::bigint
), rest AS (
  SELECT
    (SELECT count(*) FROM next_children) >= $3::bigint
    OR (SELECT count(*) FROM seen) >= $3::bigint
    OR (SELECT count(*) FROM taken) < (SELECT count(*) FROM seen) AS more
),
{cancel_found};

-- name: next_marked_tree
-- Finds a job tree that still has marks.
SELECT tree FROM redrive.closing LIMIT 1;

-- name: redrive
-- Gives dead jobs a new run. The lock makes two concurrent redrives of a job count once. $2 the ids. Returns the previous states.
WITH {clock}, found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), redriven AS (
  UPDATE redrive.jobs SET
    state = 0, run = run + 1, attempt = 0, next_run_at = clock.now, began_at = clock.now,
    wait_ms = NULL, reason = NULL, output = NULL, finished_at = NULL, cancel_requested = false
  FROM found, clock
  WHERE jobs.id = found.id AND found.state = 5
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, 5, -count(*) FROM found WHERE state = 5 GROUP BY lane
  UNION ALL
  SELECT lane, 0, count(*) FROM found WHERE state = 5 GROUP BY lane
)
SELECT id, state FROM found;

-- name: run_now
-- Makes jobs that wait for their due time due at once. If a job was not due yet, its time budget starts now. $2 the ids. Returns the
-- previous states.
WITH {clock}, found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), rescheduled AS (
  UPDATE redrive.jobs SET
    next_run_at = least(jobs.next_run_at, clock.now), began_at = least(jobs.began_at, clock.now)
  FROM found, clock
  WHERE jobs.id = found.id AND found.state < 2
)
SELECT id, state FROM found;

-- name: discard
-- Removes dead jobs with their attempts, steps and signals, and with their unique keys unless these are reserved for longer. $2 the
-- ids. Returns the previous states.
WITH {clock}, found AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE
), gone AS (
  DELETE FROM redrive.jobs USING found WHERE jobs.id = found.id AND found.state = 5
), log AS (
  -- Arrays make the planner use the indexes even when it has no statistics of a table.
  DELETE FROM redrive.attempts WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
), steps AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
), signals AS (
  DELETE FROM redrive.signals WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
), released AS (
  DELETE FROM redrive.uniques USING clock
  WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5)) AND (until IS NULL OR until <= clock.now)
), reserved AS (
  UPDATE redrive.uniques SET gone = true FROM clock
  WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5)) AND until > clock.now
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 5, -count(*) FROM found WHERE state = 5 GROUP BY lane
)
SELECT id, state FROM found;

-- name: pause
-- Pauses jobs that have not ended. A job that waits only for its due time waits for the end of the pause instead. $1 the ids.
WITH found AS MATERIALIZED (
  SELECT id, lane, state, state < 2 AND awaits IS NULL AS waits_for_due_time FROM redrive.jobs
  WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), paused AS (
  UPDATE redrive.jobs SET
    held = true,
    state = CASE WHEN found.waits_for_due_time THEN 3 ELSE jobs.state END,
    awaits = CASE WHEN found.waits_for_due_time THEN 2 ELSE jobs.awaits END
  FROM found
  WHERE jobs.id = found.id AND found.state < 4
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM found WHERE waits_for_due_time GROUP BY lane, state
  UNION ALL
  SELECT lane, 3, count(*) FROM found WHERE waits_for_due_time GROUP BY lane
)
SELECT id, CASE WHEN waits_for_due_time THEN 3::smallint ELSE state END AS state FROM found;

-- name: unpause
-- Ends the pause of jobs that have not ended. A later resume makes due those that waited for the end of the pause. $1 the ids.
WITH found AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), unpaused AS (
  UPDATE redrive.jobs SET held = false FROM found WHERE jobs.id = found.id AND found.state < 4 AND jobs.held
)
SELECT id, state FROM found;

-- name: forget
-- Removes the steps of dead jobs. The lock keeps them dead meanwhile. $1 the ids.
WITH found AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), forgotten AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
)
SELECT id, state FROM found;
