-- Makes a job due at ?2 that has waited long enough. What it has waited by choice, ?3, moves its budget on.
UPDATE redrive_jobs SET state = 0, awaits = NULL, next_run_at = ?2, began_at = began_at + ?3
WHERE seq = ?1
