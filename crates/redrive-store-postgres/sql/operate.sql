-- Operator actions: cancel (with all descendants), redrive, run now, pause, forget.
--
-- $1 is the current time in every statement that uses {clock}: NULL for the server's clock.
--
-- The statement that removes the row of a job from `ready`, `waiting` or `ended` decides about the job. A statement whose snapshot shows
-- a row that someone else has removed meanwhile changes nothing for that job and reports it as `moved`: the caller tries again.

-- name: lock_running
-- Locks the claims that list these jobs, so that their workers can neither settle them nor give them children before the end of the
-- transaction. $1 the ids.
SELECT claims.claim, claims.part FROM redrive.claims
WHERE (claims.claim, claims.part) IN (
  SELECT listing.claim, listing.part FROM redrive.claims AS listing CROSS JOIN unnest(listing.ids) AS listed (id)
  WHERE listed.id = ANY ($1::uuid[])
)
ORDER BY claims.claim, claims.part
FOR UPDATE;

-- name: cancel
-- Ends the jobs that no worker holds, and requests a cancel of those that run. The workers learn of it when they extend or settle, and
-- the jobs get no more children. A running job whose claim the transaction has not locked was claimed meanwhile: a step may add children
-- that this statement cannot see, so it is `moved`. A job that may have children is marked in the same write, so that a crash cannot
-- leave them live: if a step added some, or if it has a live child in the snapshot of this statement. $2 the number of the job tree; $3 the
-- ids; $4 and $5 the claims and parts that the transaction has locked.
WITH {clock}, found AS MATERIALIZED (
  SELECT * FROM redrive.all_jobs WHERE id = ANY (ARRAY(SELECT unnest($3::uuid[])))
), running AS MATERIALIZED (
  SELECT found.id, found.cancel_requested, listing.claim, listing.part FROM found
  JOIN redrive.claims AS listing
    ON listing.claim = found.epoch >> 16 AND found.id BETWEEN listing.first_id AND listing.last_id AND found.id = ANY (listing.ids)
  JOIN unnest($4::bigint[], $5::bigint[]) AS locked (claim, part) ON locked.claim = listing.claim AND locked.part = listing.part
  WHERE found.state = 2
), unready AS (
  DELETE FROM redrive.ready USING found
  WHERE found.state < 2 AND ready.lane = found.lane AND ready.due = found.next_run_at AND ready.id = found.id
  RETURNING ready.id
), unwaiting AS (
  DELETE FROM redrive.waiting USING found LEFT JOIN unready USING (id)
  WHERE waiting.id = found.id AND (found.state = 3 OR unready.id IS NOT NULL)
  RETURNING waiting.id
), stopped AS MATERIALIZED (
  SELECT found.* FROM found
  WHERE CASE
    WHEN found.state < 2 THEN found.id IN (SELECT id FROM unready)
    WHEN found.state = 3 THEN found.id IN (SELECT id FROM unwaiting)
  END
), parents AS MATERIALIZED (
  -- A scan that locks reads the newest version of each row. Leaves out jobs whose claim is not locked: a step that holds the claim and
  -- waits for this row would wait for this transaction, which waits for the claim next.
  SELECT progress.id, progress.has_children FROM redrive.progress
  WHERE progress.id = ANY (ARRAY(SELECT running.id FROM running UNION ALL SELECT stopped.id FROM stopped))
  ORDER BY progress.id
  FOR UPDATE
), ended AS (
  INSERT INTO redrive.ended (
    id, epoch, finished_at, started_at, attempt, last_status, state, cancel_requested, worker, last_error
  )
  SELECT
    stopped.id, stopped.epoch, clock.now, stopped.started_at, stopped.attempt, stopped.last_status, 6, stopped.cancel_requested,
    stopped.worker, stopped.last_error
  FROM clock, stopped
), asked AS (
  UPDATE redrive.claims SET cancels = coalesce(claims.cancels, ARRAY[]::uuid[]) || requests.ids
  FROM (
    SELECT claim, part, array_agg(id) AS ids FROM running WHERE NOT cancel_requested GROUP BY claim, part
  ) AS requests
  WHERE claims.claim = requests.claim AND claims.part = requests.part
), children AS (
  UPDATE redrive.children SET stage = CASE WHEN found.state = 2 THEN 1 ELSE 2 END
  FROM found
  WHERE children.parent = found.parent AND children.branch = found.branch AND children.stage < 2 AND children.id = found.id
    AND (found.id IN (SELECT id FROM running) OR found.id IN (SELECT id FROM stopped))
), unordered AS (
  DELETE FROM redrive.ordered USING stopped WHERE ordered.partition = stopped.partition AND ordered.id = stopped.id
), marked AS (
  INSERT INTO redrive.closing (tree, job)
  SELECT $2::bigint, found.id FROM found
  WHERE (found.id IN (SELECT id FROM running) OR found.id IN (SELECT id FROM stopped)) AND (
    coalesce((SELECT parents.has_children FROM parents WHERE parents.id = found.id), false)
    -- The order makes the planner use the index. Without it, a scan of the table may seem to end early.
    OR coalesce((
      SELECT true FROM redrive.children WHERE children.parent = found.id AND children.stage < 2
      ORDER BY children.branch, children.id LIMIT 1
    ), false)
  )
  RETURNING mark
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM stopped GROUP BY lane, state
  UNION ALL
  SELECT lane, 6, count(*) FROM stopped GROUP BY lane
)
SELECT
  found.id, found.state, found.partition,
  found.state IN (0, 1, 3) AND found.id NOT IN (SELECT id FROM stopped)
    OR found.state = 2 AND found.lease_until IS NOT NULL AND found.id NOT IN (SELECT id FROM running) AS moved,
  EXISTS (SELECT FROM marked) AS marked
FROM clock LEFT JOIN found ON true
ORDER BY found.id;

-- name: next_of_branches
-- Finds the next attached children of fan-outs that were not asked to stop. $1 and $2 parents and branches; $3 the maximum number.
SELECT children.id FROM unnest($1::uuid[], $2::integer[]) AS branches (parent, branch)
CROSS JOIN LATERAL (
  SELECT children.id FROM redrive.children
  WHERE children.parent = branches.parent AND children.branch = branches.branch AND children.stage = 0 AND NOT children.detached
  ORDER BY children.id
  LIMIT $3::bigint
) AS children
LIMIT $3::bigint;

-- name: next_descendants
-- Finds the next children of the marked jobs of a tree, and locks the marks. $1 the number of the tree; $2 the maximum number of marks
-- and children. `more` says whether the tree may have children left; if not, the marks can be removed.
--
-- No child is missed. A mark was committed after the claim or the progress of its job was locked, and before the snapshot of this
-- statement. A step that adds children locks both. Either the step committed before the mark, and its children are in the
-- snapshot; or it comes later, finds that the job has ended or is asked to end, and adds nothing. A mark is never changed, so that the mark
-- of a later end of the same job stays. A mark counts only while its job has ended or is asked to end: a redriven job keeps its
-- children.
WITH seen AS MATERIALIZED (
  SELECT mark FROM redrive.closing WHERE tree = $1::bigint ORDER BY mark LIMIT $2::bigint
), taken AS MATERIALIZED (
  -- A sweep may process the same tree. Whichever of the two waits here finds these marks gone.
  SELECT mark, job FROM redrive.closing
  WHERE tree = $1::bigint AND mark = ANY (ARRAY(SELECT mark FROM seen))
  ORDER BY mark
  FOR UPDATE
), ending AS MATERIALIZED (
  SELECT DISTINCT job, $2::bigint AS most FROM taken
  -- A scalar subquery, not a join. A job that was removed had ended and cannot be redriven.
  WHERE coalesce(
    (SELECT all_jobs.state > 4 OR all_jobs.cancel_requested FROM redrive.all_jobs WHERE all_jobs.id = taken.job), true
  )
), next_children AS MATERIALIZED (
  SELECT children.id FROM ending
  -- Leaves out children that were asked to stop before: that request also ends their descendants.
  CROSS JOIN LATERAL (
    SELECT children.id FROM redrive.children
    WHERE children.parent = ending.job AND children.stage = 0 AND NOT children.detached
    ORDER BY children.branch, children.id
    LIMIT ending.most
  ) AS children
  LIMIT $2::bigint
)
SELECT
  (SELECT array_agg(id) FROM next_children) AS ids, (SELECT array_agg(mark) FROM taken) AS marks,
  (SELECT count(*) FROM next_children) >= $2::bigint AS more_children,
  (SELECT count(*) FROM seen) >= $2::bigint OR (SELECT count(*) FROM taken) < (SELECT count(*) FROM seen) AS more_marks;

-- name: remove_marks
-- Removes marks whose children have all ended or are asked to. $1 the number of the tree; $2 the marks.
DELETE FROM redrive.closing WHERE tree = $1::bigint AND mark = ANY ($2::bigint[]);

-- name: next_marked_tree
-- Finds a job tree that still has marks.
SELECT tree FROM redrive.closing LIMIT 1;

-- name: redrive
-- Gives dead jobs a new run. Of two concurrent redrives of a job, one removes the row of its end. $2 the ids. Returns the
-- previous states.
WITH {clock}, found AS MATERIALIZED (
  SELECT * FROM redrive.all_jobs WHERE id = ANY (ARRAY(SELECT unnest($2::uuid[])))
), revived AS (
  DELETE FROM redrive.ended USING found WHERE ended.id = found.id AND found.state = 5 RETURNING found.*
), progressed AS (
  INSERT INTO redrive.progress (
    id, epoch, began_at, next_run_at, started_at, run, last_status, paused, worker, last_error
  )
  SELECT
    revived.id, revived.epoch, clock.now, clock.now, revived.started_at, revived.run + 1, revived.last_status, revived.paused,
    revived.worker, revived.last_error
  FROM clock, revived
  ORDER BY revived.id
  ON CONFLICT (id) DO UPDATE SET
    epoch = excluded.epoch, began_at = excluded.began_at, next_run_at = excluded.next_run_at, started_at = excluded.started_at,
    run = excluded.run, attempt = 0, wait_ms = NULL, last_status = excluded.last_status, worker = excluded.worker,
    last_error = excluded.last_error
), made_ready AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, progress, partition, strict)
  SELECT revived.lane, clock.now, revived.id, revived.lease_ms, true, revived.partition, revived.strict FROM clock, revived
), children AS (
  UPDATE redrive.children SET stage = 0 FROM revived
  WHERE children.parent = revived.parent AND children.branch = revived.branch AND children.stage = 2
    AND children.id = revived.id
), ordered AS (
  INSERT INTO redrive.ordered (partition, id) SELECT partition, id FROM revived WHERE strict AND partition IS NOT NULL
), used AS (
  UPDATE redrive.lanes SET idle = false, used_at = clock.now FROM clock
  WHERE lanes.idle AND lanes.lane IN (SELECT revived.lane FROM revived)
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, 5, -count(*) FROM revived GROUP BY lane
  UNION ALL
  SELECT lane, 0, count(*) FROM revived GROUP BY lane
)
SELECT found.id, found.state, found.state = 5 AND found.id NOT IN (SELECT revived.id FROM revived) AS moved FROM found;

-- name: run_now
-- Makes jobs that wait for their due time due at once. If a job was not due yet, its time budget starts now. $2 the ids. Returns the
-- previous states.
WITH {clock}, found AS MATERIALIZED (
  SELECT
    all_jobs.*, clock.now AS at, all_jobs.state < 2 AND all_jobs.next_run_at > clock.now AS early,
    all_jobs.state < 2 AND all_jobs.began_at > clock.now AS budget_starts
  FROM clock, redrive.all_jobs WHERE all_jobs.id = ANY (ARRAY(SELECT unnest($2::uuid[])))
), unready AS (
  DELETE FROM redrive.ready USING found
  WHERE found.early AND ready.lane = found.lane AND ready.due = found.next_run_at AND ready.id = found.id
  RETURNING ready.*, found.at
), progressed AS (
  INSERT INTO redrive.progress (id, began_at, next_run_at)
  SELECT found.id, least(found.began_at, found.at), least(found.next_run_at, found.at) FROM found
  WHERE found.early AND found.id IN (SELECT unready.id FROM unready) OR found.budget_starts AND NOT found.early
  ORDER BY found.id
  ON CONFLICT (id) DO UPDATE SET began_at = excluded.began_at, next_run_at = excluded.next_run_at
), made_ready AS (
  INSERT INTO redrive.ready (lane, due, id, lease_ms, state, progress, awaiting, partition, strict)
  SELECT lane, at, id, lease_ms, state, true, awaiting, partition, strict FROM unready
)
SELECT found.id, found.state, found.early AND found.id NOT IN (SELECT unready.id FROM unready) AS moved FROM found;

-- name: pause
-- Pauses jobs that have not ended. A job that waits only for its due time waits for the end of the pause instead. $1 the ids.
WITH found AS MATERIALIZED (
  SELECT all_jobs.*, state < 2 AND awaits IS NULL AS waits_for_due_time FROM redrive.all_jobs
  WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), unready AS (
  DELETE FROM redrive.ready USING found
  WHERE found.waits_for_due_time AND ready.lane = found.lane AND ready.due = found.next_run_at AND ready.id = found.id
  RETURNING ready.*
), made_waiting AS (
  INSERT INTO redrive.waiting (id, due, lane, awaits, strict, partition)
  SELECT id, due, lane, 2, strict, partition FROM unready
), paused AS (
  INSERT INTO redrive.progress (id, began_at, next_run_at, paused)
  SELECT id, began_at, next_run_at, true FROM found
  WHERE state < 4 AND (NOT waits_for_due_time OR id IN (SELECT unready.id FROM unready))
  ORDER BY id
  ON CONFLICT (id) DO UPDATE SET paused = true
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM unready GROUP BY lane, state
  UNION ALL
  SELECT lane, 3, count(*) FROM unready GROUP BY lane
)
SELECT
  id, CASE WHEN waits_for_due_time THEN 3::smallint ELSE state END AS state,
  waits_for_due_time AND id NOT IN (SELECT unready.id FROM unready) AS moved
FROM found;

-- name: unpause
-- Ends the pause of jobs that have not ended. A later resume makes due those that waited for the end of the pause. $1 the ids.
WITH found AS MATERIALIZED (
  SELECT id, state FROM redrive.all_jobs WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), unpaused AS (
  UPDATE redrive.progress SET paused = false FROM found WHERE progress.id = found.id AND found.state < 4 AND progress.paused
)
SELECT id, state, false AS moved FROM found;

-- name: forget
-- Removes the steps of dead jobs. The lock keeps them dead meanwhile. $1 the ids.
WITH found AS MATERIALIZED (
  SELECT id, state FROM redrive.all_jobs WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), dead AS MATERIALIZED (
  SELECT ended.id FROM redrive.ended WHERE ended.id = ANY (ARRAY(SELECT unnest($1::uuid[]))) AND ended.state = 5 ORDER BY ended.id FOR UPDATE
), forgotten AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT id FROM dead))
)
SELECT id, state, false AS moved FROM found;
