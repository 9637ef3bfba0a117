-- Makes a job due that has waited long enough. The time it has waited moves its budget on; where ?3 says so, what is due
-- later stays so.
UPDATE redrive_jobs SET
  state = 0, awaits = NULL,
  began_at = began_at + CASE WHEN ?3 THEN max(?2 - next_run_at, 0) ELSE ?2 - next_run_at END,
  next_run_at = CASE WHEN ?3 THEN max(?2, next_run_at) ELSE ?2 END
WHERE seq = ?1
