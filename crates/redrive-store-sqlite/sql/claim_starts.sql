-- Starts within a rate's span, oldest first.
SELECT at, jobs FROM redrive_starts WHERE scope = ?1 AND at > ?2 ORDER BY at
