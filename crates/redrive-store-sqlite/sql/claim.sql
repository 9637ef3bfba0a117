-- Takes the lease and charges the attempt in one write.
UPDATE redrive_jobs
SET state = 2, attempt = attempt + 1, epoch = epoch + 1, started_at = ?2, lease_until = ?3, worker = ?4
WHERE seq = ?1 AND state < 2
