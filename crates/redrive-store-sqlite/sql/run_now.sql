-- Makes a job due that waits for its time; its budget counts from now if it was not due yet.
UPDATE redrive_jobs SET next_run_at = min(next_run_at, ?2), began_at = min(began_at, ?2)
WHERE id = ?1 AND state < 2
