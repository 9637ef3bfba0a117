-- Ends the hold of jobs that have not ended. A resume lets those go on that waited for it.
WITH found AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), unheld AS (
  UPDATE redrive.jobs SET held = false FROM found WHERE jobs.id = found.id AND found.state < 4 AND jobs.held
)
SELECT id, state FROM found
