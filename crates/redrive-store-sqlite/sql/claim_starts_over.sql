-- Forgets starts that are older than a rate's span.
DELETE FROM redrive_starts WHERE scope = ?1 AND at <= ?2
