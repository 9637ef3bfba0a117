-- What was asked for under a job's key, and the unique key that it holds.
SELECT jobs.fingerprint, uniques.key, uniques.until
FROM redrive_jobs jobs LEFT JOIN redrive_uniques uniques ON uniques.job = jobs.id
WHERE jobs.id = ?1 LIMIT 1
