-- The partition of a job.
SELECT partition FROM redrive_jobs WHERE id = ?1
