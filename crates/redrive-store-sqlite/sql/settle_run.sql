-- Ends jobs well that stand one after the other under leases of one epoch, in one write. The epoch shuts out a worker
-- whose lease was reclaimed meanwhile; the caller counts the rows and undoes a write that met such a one.
UPDATE OR FAIL redrive_jobs SET state = 4, finished_at = ?4, lease_until = NULL, reason = NULL
WHERE seq >= ?1 AND seq <= ?2 AND epoch = ?3 AND state = 2 AND cancel_requested = 0
