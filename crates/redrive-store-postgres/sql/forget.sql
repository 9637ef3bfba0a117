-- Forgets the steps of dead jobs. The lock keeps them dead meanwhile.
WITH found AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), forgotten AS (
  DELETE FROM redrive.steps USING found WHERE steps.job = found.id AND found.state = 5
)
SELECT id, state FROM found
