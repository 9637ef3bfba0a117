-- Applies one verdict. The epoch shuts out a worker whose lease was reclaimed meanwhile; ?4 says for which case, with or
-- without a requested cancel, the values are meant.
UPDATE redrive_jobs SET
  state = ?5, finished_at = ?6, lease_until = NULL,
  next_run_at = coalesce(?7, next_run_at), wait_ms = coalesce(?8, wait_ms),
  attempt = attempt - ?9, began_at = began_at + ?10,
  last_error = coalesce(?11, last_error), last_status = coalesce(?14, last_status), output = coalesce(?12, output), reason = ?13,
  awaits = ?15, awaits_name = ?16, awaits_branch = ?17, awaits_failures = ?18
WHERE seq = ?1 AND id = ?2 AND epoch = ?3 AND state = 2 AND cancel_requested = ?4
