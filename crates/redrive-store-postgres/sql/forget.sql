-- Forgets the steps of dead jobs. The lock keeps them dead meanwhile.
WITH found AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
), forgotten AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT id FROM found WHERE state = 5))
)
SELECT id, state FROM found
