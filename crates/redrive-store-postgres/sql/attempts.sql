-- The log of one job, oldest first.
SELECT epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at
FROM redrive.attempts WHERE job = $1 AND epoch > $2
ORDER BY epoch LIMIT $3
