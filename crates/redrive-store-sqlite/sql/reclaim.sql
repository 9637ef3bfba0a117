-- Takes over a lease that has run out: the new epoch shuts the old holder out; no attempt is charged. The lost worker's name
-- stays, for the log.
UPDATE redrive_jobs SET epoch = epoch + 1, lease_until = ?3
WHERE seq = ?1 AND state = 2 AND lease_until <= ?2
