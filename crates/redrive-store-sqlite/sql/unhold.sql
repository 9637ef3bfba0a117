-- Lets a job go that has not ended.
UPDATE redrive_jobs SET held = 0 WHERE id = ?1 AND state < 4
