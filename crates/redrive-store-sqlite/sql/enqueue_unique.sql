-- Who has a unique key, until when it was promised, and how far the job has come.
SELECT uniques.job, uniques.until, jobs.state, jobs.epoch
FROM redrive_uniques uniques LEFT JOIN redrive_jobs jobs ON jobs.id = uniques.job
WHERE uniques.tenant = ?1 AND uniques.kind = ?2 AND uniques.key = ?3
