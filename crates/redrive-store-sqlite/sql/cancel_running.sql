-- Asks for the end of a running job; its worker hears of it when it extends or settles.
UPDATE redrive_jobs SET cancel_requested = 1 WHERE id = ?1 AND state = 2
