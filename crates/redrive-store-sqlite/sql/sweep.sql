-- The next jobs that wait for something, in the order of their ids.
SELECT id FROM redrive_jobs INDEXED BY redrive_awaiting WHERE awaits IS NOT NULL AND id > ?1 ORDER BY id LIMIT ?2
