-- When the next job of one lane is due: one step in the index.
SELECT next_run_at FROM redrive_jobs INDEXED BY redrive_due
WHERE state < 2 AND lane = ?1
ORDER BY next_run_at LIMIT 1
