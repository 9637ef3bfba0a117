-- Removes jobs at the end of their retention with their logs, state by state as given, longest ended first, never more than
-- $4. What another prune has its hands on is passed over. $1 the time, none for the server's; $2, $3 states and how long
-- each is kept.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), expired AS MATERIALIZED (
  SELECT expired.* FROM clock, unnest($2::smallint[], $3::bigint[]) AS kept (state, ms)
  CROSS JOIN LATERAL (
    SELECT jobs.id, jobs.lane, jobs.state FROM redrive.jobs
    WHERE jobs.state > 3 AND jobs.state = kept.state AND jobs.finished_at <= clock.now - kept.ms
    ORDER BY jobs.finished_at, jobs.id
    LIMIT $4::bigint
    FOR UPDATE SKIP LOCKED
  ) AS expired
  LIMIT $4::bigint
), gone AS (
  DELETE FROM redrive.jobs USING expired WHERE jobs.id = expired.id
), log AS (
  DELETE FROM redrive.attempts USING expired WHERE attempts.job = expired.id
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, -count(*) FROM expired GROUP BY lane, state
)
SELECT count(*) FROM expired
