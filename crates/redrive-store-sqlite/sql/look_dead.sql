-- The same among dead letters, which have an index of their own.
SELECT id FROM redrive_jobs WHERE state = 5 AND id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2 - 1
