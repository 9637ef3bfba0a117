-- Removes a job that has ended.
DELETE FROM redrive_jobs WHERE id = ?1 AND state > 3
