-- The oldest of the next ?2 ids before ?1, newest first: the bound of a look. It reads the index of ids alone.
SELECT id FROM redrive_jobs WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2 - 1
