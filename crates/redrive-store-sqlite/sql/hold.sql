-- Holds a job that has not ended. One that waits for its time alone is set aside at once.
UPDATE redrive_jobs SET
  held = 1,
  state = CASE WHEN state < 2 AND awaits IS NULL THEN 3 ELSE state END,
  awaits = CASE WHEN state < 2 AND awaits IS NULL THEN 2 ELSE awaits END
WHERE id = ?1 AND state < 4
RETURNING state
