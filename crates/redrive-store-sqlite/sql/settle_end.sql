-- Ends a job. The epoch shuts out a worker whose lease was reclaimed meanwhile.
UPDATE redrive_jobs SET
  state = ?5, finished_at = ?6, lease_until = NULL,
  attempt = attempt - ?7, began_at = began_at + ?8,
  last_error = coalesce(?9, last_error), output = coalesce(?10, output), reason = ?11
WHERE seq = ?1 AND id = ?2 AND epoch = ?3 AND state = 2 AND cancel_requested = ?4
