-- The signals of jobs in the order in which they came, those taken too; what these said is in a step.
SELECT id, name, CASE WHEN taken THEN ''::bytea ELSE value END AS value, taken, job
FROM redrive.signals WHERE job = ANY ($1::uuid[]) ORDER BY job, seq
