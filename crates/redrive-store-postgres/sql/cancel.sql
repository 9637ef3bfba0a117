-- Ends jobs and everything below them that no worker holds; asks for the end of what is running, whose workers hear of it
-- when they extend or settle. Below a job that had ended nothing is touched; one that ends just now leaves all as it was and
-- is answered with `again`. Rows are locked in the order of their ids. $1 the time, none for the server's.
WITH RECURSIVE clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), asked AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($2::uuid[])
), tree AS (
  SELECT id FROM asked WHERE state < 4
  UNION
  -- OFFSET keeps it a look at each job's children, whatever the planner thinks of how many there are.
  SELECT below.id FROM tree CROSS JOIN LATERAL (SELECT jobs.id FROM redrive.jobs WHERE jobs.parent = tree.id OFFSET 0) AS below
), found AS MATERIALIZED (
  SELECT id, lane, state, parent, next_run_at, partition, strict FROM redrive.jobs
  WHERE id = ANY (ARRAY(SELECT id FROM tree UNION SELECT id FROM asked))
  ORDER BY id
  FOR UPDATE
), doomed AS MATERIALIZED (
  SELECT found.* FROM found JOIN tree USING (id)
  WHERE found.state < 4 AND NOT EXISTS (
    SELECT FROM asked JOIN found AS latest USING (id) WHERE asked.state < 4 AND latest.state > 3
  )
), cancelled AS (
  -- An array keeps the planner at the primary key, whatever it thinks of how large the tree is.
  UPDATE redrive.jobs SET
    state = CASE WHEN state = 2 THEN 2 ELSE 6 END,
    finished_at = CASE WHEN state = 2 THEN NULL ELSE clock.now END,
    awaits = NULL,
    cancel_requested = cancel_requested OR state = 2
  FROM clock
  WHERE jobs.id = ANY (ARRAY(SELECT id FROM doomed))
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM doomed WHERE state <> 2 GROUP BY lane, state
  UNION ALL
  SELECT lane, 6, count(*) FROM doomed WHERE state <> 2 GROUP BY lane
)
SELECT
  found.id, found.state, found.parent, found.partition, found.strict,
  found.state < 2 AND found.next_run_at <= clock.now AS due, coalesce(asked.state < 4 AND found.state > 3, false) AS again
FROM clock CROSS JOIN found LEFT JOIN asked USING (id)
ORDER BY found.id
