-- Removes a dead job.
DELETE FROM redrive_jobs WHERE id = ?1 AND state = 5
