-- The logs of jobs, oldest attempt first.
SELECT
  epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at, job
FROM redrive.attempts WHERE job = ANY ($1::uuid[]) ORDER BY job, epoch
