-- Logs an attempt in the transaction that settled it. The primary key allows one outcome for each epoch.
INSERT INTO redrive_attempts
  (job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
