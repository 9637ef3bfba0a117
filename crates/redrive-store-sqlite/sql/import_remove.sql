-- Makes room for a job that is imported again.
DELETE FROM redrive_jobs WHERE id = ?1
