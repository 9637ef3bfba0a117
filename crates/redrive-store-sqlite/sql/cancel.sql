-- Ends a job that no worker holds.
UPDATE redrive_jobs SET state = 6, finished_at = ?2, awaits = NULL WHERE seq = ?1 AND state IN (0, 1, 3)
