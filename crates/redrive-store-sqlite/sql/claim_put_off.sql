-- Puts a due job off. Costs no attempt.
UPDATE redrive_jobs SET next_run_at = ?2 WHERE seq = ?1 AND state < 2
