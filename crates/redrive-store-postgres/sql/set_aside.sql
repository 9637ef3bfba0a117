-- Marks signals ($3) of a job as taken while its lease still holds, and answers with the job then. The lock lets nobody take the
-- lease over meanwhile.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH held AS MATERIALIZED (
  SELECT id FROM redrive.jobs WHERE id = $1::uuid AND epoch = $2::bigint AND state::integer = 2 FOR NO KEY UPDATE
), aside AS (
  UPDATE redrive.signals SET taken = true, value = ''
  FROM held
  WHERE signals.job = held.id AND signals.id = ANY ($3::uuid[]) AND NOT signals.taken
)
SELECT id FROM held
