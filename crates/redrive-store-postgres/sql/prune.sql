-- Removes jobs at the end of their retention with their logs, steps and signals, and their unique keys unless these were
-- promised for longer; state by state as given, longest ended first, never more than $4. Children whose parent may still
-- ask for them stay. What another prune has its hands on is passed over. $1 the time, none for the server's; $2, $3 states
-- and how long each is kept.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), kept AS MATERIALIZED (
  -- The limit travels as a column: the planner, which cannot look into it, then always takes the walk that starts fast.
  SELECT kept.*, $4::bigint AS most FROM unnest($2::smallint[], $3::bigint[]) AS kept (state, ms)
), expired AS MATERIALIZED (
  SELECT expired.* FROM clock, kept
  CROSS JOIN LATERAL (
    SELECT jobs.id, jobs.lane, jobs.state FROM redrive.jobs
    WHERE jobs.state > 3 AND jobs.state = kept.state AND jobs.finished_at <= clock.now - kept.ms
      -- A value and no EXISTS, which the planner would make a join with every parent.
      AND (jobs.parent IS NULL OR coalesce((SELECT above.state FROM redrive.jobs AS above WHERE above.id = jobs.parent), 4) > 3)
    ORDER BY jobs.finished_at, jobs.id
    LIMIT kept.most
    FOR UPDATE SKIP LOCKED
  ) AS expired
  LIMIT $4::bigint
), gone AS (
  DELETE FROM redrive.jobs USING expired WHERE jobs.id = expired.id
), log AS (
  -- Arrays keep the planner at the indexes when it knows nothing of a table.
  DELETE FROM redrive.attempts WHERE job = ANY (ARRAY(SELECT id FROM expired))
), steps AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT id FROM expired))
), signals AS (
  DELETE FROM redrive.signals WHERE job = ANY (ARRAY(SELECT id FROM expired))
), released AS (
  DELETE FROM redrive.uniques USING clock
  WHERE job = ANY (ARRAY(SELECT id FROM expired)) AND (until IS NULL OR until <= clock.now)
), outlived AS (
  UPDATE redrive.uniques SET gone = true FROM clock WHERE job = ANY (ARRAY(SELECT id FROM expired)) AND until > clock.now
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, -count(*) FROM expired GROUP BY lane, state
)
SELECT count(*) FROM expired
