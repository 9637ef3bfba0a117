-- The same among dead letters.
SELECT count(*) FROM redrive_jobs WHERE state = 5 AND id < ?1
