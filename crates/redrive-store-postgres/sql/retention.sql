-- Removes jobs: dead ones that an operator discards, and ended ones after their retention. Also removes other rows that are no
-- longer needed, and merges the rows of the table of counts.
--
-- $1 is the current time in every statement that uses {now} or {clock}: NULL for the server's clock.

-- fragment: remove_found
-- Removes what belongs to the jobs in `gone`, and their unique keys unless these are reserved for longer.
contents AS (
  -- Arrays make the planner use the indexes even when it has no statistics of a table.
  DELETE FROM redrive.jobs WHERE id = ANY (ARRAY(SELECT gone.id FROM gone))
), progress AS (
  DELETE FROM redrive.progress WHERE id = ANY (ARRAY(SELECT gone.id FROM gone))
), log AS (
  DELETE FROM redrive.attempts WHERE job = ANY (ARRAY(SELECT gone.id FROM gone))
), steps AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT gone.id FROM gone))
), signals AS (
  DELETE FROM redrive.signals WHERE job = ANY (ARRAY(SELECT gone.id FROM gone))
), children AS (
  DELETE FROM redrive.children USING gone
  WHERE children.parent = gone.parent AND children.branch = gone.branch AND children.stage = 2 AND children.id = gone.id
), released AS (
  DELETE FROM redrive.uniques USING clock
  WHERE job = ANY (ARRAY(SELECT gone.id FROM gone)) AND (until IS NULL OR until <= clock.now)
), reserved AS (
  UPDATE redrive.uniques SET gone = true FROM clock WHERE job = ANY (ARRAY(SELECT gone.id FROM gone)) AND until > clock.now
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, -count(*) FROM gone GROUP BY lane, state
)

-- name: discard
-- Removes dead jobs with their attempts, steps and signals, and with their unique keys unless these are reserved for longer. $2 the
-- ids. Returns the previous states.
WITH {clock}, found AS MATERIALIZED (
  SELECT id, lane, state, parent, branch FROM redrive.all_jobs WHERE id = ANY (ARRAY(SELECT unnest($2::uuid[])))
), gone AS (
  DELETE FROM redrive.ended USING found WHERE ended.id = found.id AND found.state = 5 RETURNING found.*
),
{remove_found}
SELECT found.id, found.state, found.state = 5 AND found.id NOT IN (SELECT gone.id FROM gone) AS moved FROM found;

-- name: prune
-- Removes jobs of one state after their retention, those that ended first, with their attempts, steps and signals, and with their unique
-- keys unless these are reserved for longer. Keeps the children of parents that have not ended, because a parent may still read the
-- results. Skips rows that someone has locked. Examines a bounded number of jobs, and returns the last of them, so that the next call
-- continues there however many jobs are kept. $2 the state; $3 its retention; $4 and $5 the position to continue after; $6 the
-- maximum number of jobs to examine; $7 and to remove.
WITH {clock}, bounds AS MATERIALIZED (
  -- Limits are columns, whose values the planner cannot see: it then always chooses the index scan that starts fast.
  SELECT $6::bigint AS examined_max, $7::bigint AS removed_max
), examined AS MATERIALIZED (
  SELECT expired.* FROM clock, bounds CROSS JOIN LATERAL (
    SELECT ended.id, ended.finished_at FROM redrive.ended
    WHERE ended.state = $2::smallint AND ended.finished_at <= clock.now - $3::bigint
      AND (ended.finished_at, ended.id) > ($4::bigint, $5::uuid)
    ORDER BY ended.finished_at, ended.id
    LIMIT bounds.examined_max
  ) AS expired
), removable AS MATERIALIZED (
  SELECT examined.id, examined.finished_at, jobs.lane, $2::smallint AS state, jobs.parent, jobs.branch
  FROM examined JOIN redrive.jobs ON jobs.id = examined.id
  -- A scalar subquery, because the planner would turn EXISTS into a join with every parent.
  WHERE jobs.parent IS NULL OR coalesce((
    SELECT false FROM redrive.jobs AS parent
    WHERE parent.id = jobs.parent AND NOT coalesce((SELECT true FROM redrive.ended AS parent_end WHERE parent_end.id = parent.id), false)
  ), true)
  ORDER BY examined.finished_at, examined.id
  LIMIT (SELECT removed_max FROM bounds)
), locked AS MATERIALIZED (
  SELECT ended.id FROM redrive.ended JOIN redrive.jobs ON jobs.id = ended.id
  WHERE ended.id = ANY (ARRAY(SELECT removable.id FROM removable))
  FOR UPDATE OF ended, jobs SKIP LOCKED
), removed AS (
  DELETE FROM redrive.ended WHERE id = ANY (ARRAY(SELECT locked.id FROM locked)) RETURNING id
), gone AS MATERIALIZED (
  SELECT removable.* FROM removable JOIN removed USING (id)
),
{remove_found}
SELECT
  (SELECT count(*) FROM gone) AS removed, (SELECT count(*) FROM examined) AS examined,
  -- If the limit cut the removal off, the rest of the examined jobs is examined again.
  last.finished_at, last.id
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
  SELECT finished_at, id FROM (
    SELECT finished_at, id FROM removable
    WHERE (SELECT count(*) FROM removable) = (SELECT removed_max FROM bounds)
    UNION ALL
    SELECT finished_at, id FROM examined WHERE (SELECT count(*) FROM removable) < (SELECT removed_max FROM bounds)
  ) AS positions
  ORDER BY finished_at DESC, id DESC LIMIT 1
) AS last ON true;

-- name: prune_unique_keys
-- Removes reserved unique keys whose time has passed, at most $2. Skips rows that another node has locked.
WITH chosen AS MATERIALIZED (
  SELECT ctid FROM redrive.uniques
  WHERE gone AND until <= {now}
  ORDER BY until
  LIMIT $2::bigint
  FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive.uniques WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen));

-- name: prune_starts
-- Removes recorded starts that no rate limit counts any more: those older than $2, at most $3. Skips rows that another node has
-- locked.
WITH chosen AS MATERIALIZED (
  SELECT ctid FROM redrive.starts
  WHERE at <= {now} - $2::bigint
  ORDER BY at
  LIMIT $3::bigint
  FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive.starts WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen));

-- name: merge_counts
-- Merges rows of the table of counts into one for each lane and state, at most $1 rows. No reader sees a wrong sum meanwhile. Skips
-- rows that another node merges. Returns the number of rows that it merged.
WITH chosen AS (
  SELECT ctid FROM redrive.counts LIMIT $1::bigint FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM redrive.counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen)) RETURNING lane, state, jobs
), merged AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, sum(jobs) FROM gone GROUP BY lane, state HAVING sum(jobs) <> 0
)
SELECT count(*) AS merged FROM gone;

-- name: retire_lanes
-- Removes lanes that nobody has used for a day and that have no jobs, and makes those idle that have only ended jobs. An enqueue notes at
-- least once an hour that it uses a lane, so none of these can get a job meanwhile. $2 the time without use.
WITH {clock}, unused AS MATERIALIZED (
  SELECT lanes.lane FROM clock, redrive.lanes WHERE lanes.used_at < clock.now - $2::bigint
), counts AS MATERIALIZED (
  SELECT unused.lane, sum(counts.jobs) FILTER (WHERE counts.state < 4) AS live, sum(counts.jobs) AS jobs
  FROM unused LEFT JOIN redrive.counts USING (lane) GROUP BY unused.lane
), removed AS (
  DELETE FROM redrive.lanes USING counts, clock
  WHERE lanes.lane = counts.lane AND coalesce(counts.jobs, 0) = 0 AND lanes.used_at < clock.now - $2::bigint
  RETURNING lanes.lane
), made_idle AS (
  UPDATE redrive.lanes SET idle = true FROM counts, clock
  WHERE lanes.lane = counts.lane AND coalesce(counts.live, 0) = 0 AND counts.jobs > 0 AND NOT lanes.idle
    AND lanes.used_at < clock.now - $2::bigint
)
SELECT lane FROM removed;
