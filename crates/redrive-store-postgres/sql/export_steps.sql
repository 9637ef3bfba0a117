-- The remembered steps of jobs, in their order.
SELECT place, name, kind, value, job FROM redrive.steps WHERE job = ANY ($1::uuid[]) ORDER BY job, place
