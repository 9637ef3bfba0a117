-- Requests the end of a running job. Its worker hears of it when it extends or settles, and it gets no more children.
UPDATE redrive_jobs SET cancel_requested = 1 WHERE seq = ?1 AND state = 2
