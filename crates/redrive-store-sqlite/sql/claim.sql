-- Takes the leases of rows that stand one after the other, and charges each an attempt, in one write. A row may ask for a lease of its own. FAIL needs no
-- statement journal: on any error the whole transaction is rolled back.
UPDATE OR FAIL redrive_jobs
SET state = 2, attempt = attempt + 1, epoch = epoch + 1, started_at = ?3, lease_until = ?3 + coalesce(lease_ms, ?4), worker = ?5, awaits = NULL
WHERE seq >= ?1 AND seq <= ?2 AND state < 2
