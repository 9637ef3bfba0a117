-- Lets a job go on, now or later. The epoch shuts out a worker whose lease was reclaimed meanwhile.
UPDATE redrive_jobs SET
  state = ?5, next_run_at = coalesce(?6, next_run_at), wait_ms = coalesce(?10, wait_ms), lease_until = NULL,
  attempt = attempt - ?7, began_at = began_at + ?8,
  last_error = coalesce(?9, last_error)
WHERE seq = ?1 AND id = ?2 AND epoch = ?3 AND state = 2 AND cancel_requested = ?4
