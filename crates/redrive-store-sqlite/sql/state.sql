-- Where one job is.
SELECT lane, state FROM redrive_jobs WHERE id = ?1
