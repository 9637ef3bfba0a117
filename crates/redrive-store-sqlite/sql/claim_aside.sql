-- Sets a due job aside until it is its turn. Costs no attempt.
UPDATE redrive_jobs SET state = 3, awaits = 3 WHERE seq = ?1 AND state < 2
