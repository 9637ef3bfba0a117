-- Ends those of the jobs found that no worker holds, and requests the end of those that run: their workers learn of it when they
-- extend or settle, and they get no more children. A job that may have children is marked in the same write, so that ending
-- these cannot be forgotten: one whose row says that a step brought some, or below which this statement's snapshot shows a live one.
ended AS (
  -- An array keeps the planner at the primary key, whatever it thinks of how many there are.
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
