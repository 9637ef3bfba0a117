-- The job of a partition and a lane that has waited for its turn for longest.
SELECT next_run_at, id FROM redrive_jobs INDEXED BY redrive_turns
WHERE partition = ?1 AND lane = ?2 AND awaits = 3 AND strict = 0 ORDER BY next_run_at, id LIMIT 1
