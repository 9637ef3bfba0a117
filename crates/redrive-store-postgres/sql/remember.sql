-- Remembers steps, each once, under leases that still hold. The rows of the jobs are locked first, in the order of their ids:
-- a reclaim that commits meanwhile shuts out what its old holder would have remembered. Of several steps for one place the
-- first is kept. A place that was taken before is answered with `kept` false; who took it this statement may not see.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::smallint[], $5::text[], $6::bytea[])
    WITH ORDINALITY AS given (job, epoch, place, kind, name, value, turn)
), asked AS MATERIALIZED (
  SELECT DISTINCT job, epoch FROM given
), held AS MATERIALIZED (
  SELECT jobs.id AS job, jobs.epoch FROM redrive.jobs JOIN asked ON asked.job = jobs.id AND asked.epoch = jobs.epoch
  WHERE jobs.state::integer = 2
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), kept AS (
  INSERT INTO redrive.steps (job, place, kind, name, value)
  SELECT job, place, kind, name, value FROM given JOIN held USING (job, epoch)
  ORDER BY turn
  ON CONFLICT DO NOTHING
  RETURNING job, place
)
SELECT given.turn, kept.place IS NOT NULL AS kept
FROM given
JOIN held USING (job, epoch)
LEFT JOIN kept ON kept.job = given.job AND kept.place = given.place
