-- Makes a job due that has waited long enough. What it has waited by choice, ?2, moves its time and its budget on.
UPDATE redrive_jobs SET state = 0, awaits = NULL, next_run_at = next_run_at + ?2, began_at = began_at + ?2
WHERE seq = ?1
