-- Removes jobs and other rows after their retention, and merges the rows of the table of counts.

-- name: prune
-- Removes ended jobs after their retention, with their attempts, steps and signals, and with their unique keys unless these are
-- reserved for longer. Works through the states in the given order, earliest end first, and removes at most $4 jobs. Keeps the
-- children of parents that have not ended, because a parent may still read the results. Skips rows that another prune has
-- locked. $2 and $3 states and their retention.
WITH {clock}, retention AS MATERIALIZED (
  -- The limit is a column, whose value the planner cannot see: it then always chooses the index scan that starts fast.
  SELECT retention.*, $4::bigint AS most FROM unnest($2::smallint[], $3::bigint[]) AS retention (state, ms)
), expired AS MATERIALIZED (
  SELECT expired.* FROM clock, retention
  CROSS JOIN LATERAL (
    SELECT jobs.id, jobs.lane, jobs.state FROM redrive.jobs
    WHERE jobs.state > 3 AND jobs.state = retention.state AND jobs.finished_at <= clock.now - retention.ms
      -- A scalar subquery, because the planner would turn EXISTS into a join with every parent.
      AND (jobs.parent IS NULL OR coalesce((SELECT parent.state FROM redrive.jobs AS parent WHERE parent.id = jobs.parent), 4) > 3)
    ORDER BY jobs.finished_at, jobs.id
    LIMIT retention.most
    FOR UPDATE SKIP LOCKED
  ) AS expired
  LIMIT $4::bigint
), gone AS (
  DELETE FROM redrive.jobs USING expired WHERE jobs.id = expired.id
), log AS (
  -- Arrays make the planner use the indexes even when it has no statistics of a table.
  DELETE FROM redrive.attempts WHERE job = ANY (ARRAY(SELECT id FROM expired))
), steps AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT id FROM expired))
), signals AS (
  DELETE FROM redrive.signals WHERE job = ANY (ARRAY(SELECT id FROM expired))
), released AS (
  DELETE FROM redrive.uniques USING clock
  WHERE job = ANY (ARRAY(SELECT id FROM expired)) AND (until IS NULL OR until <= clock.now)
), reserved AS (
  UPDATE redrive.uniques SET gone = true FROM clock WHERE job = ANY (ARRAY(SELECT id FROM expired)) AND until > clock.now
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, -count(*) FROM expired GROUP BY lane, state
)
SELECT count(*) FROM expired;

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
-- Merges the rows of the table of counts into one for each lane and state. No reader sees a wrong sum meanwhile. Skips rows that
-- another node merges.
WITH chosen AS (
  SELECT ctid FROM redrive.counts LIMIT 100000 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM redrive.counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen)) RETURNING lane, state, jobs
)
INSERT INTO redrive.counts (lane, state, jobs)
SELECT lane, state, sum(jobs) FROM gone GROUP BY lane, state HAVING sum(jobs) <> 0;
