-- Gives a dead job a fresh run. The state in the condition lets two redrives at once drive it once.
UPDATE redrive_jobs SET
  state = 0, run = run + 1, attempt = 0, next_run_at = ?2, began_at = ?2,
  wait_ms = NULL, reason = NULL, output = NULL, finished_at = NULL, cancel_requested = 0
WHERE id = ?1 AND state = 5
