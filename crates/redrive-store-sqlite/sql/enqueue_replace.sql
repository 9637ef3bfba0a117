-- Lets a job that was never claimed do something else, at another time.
UPDATE redrive_jobs SET
  next_run_at = ?2, began_at = ?2, timeout_ms = ?3, lease_ms = ?4, policy = ?5, subject = ?6, metadata = ?7, payload = ?8
WHERE id = ?1 AND state = 0 AND epoch = 0
