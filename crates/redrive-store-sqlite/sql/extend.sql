-- Renews a lease that is still the holder's and brings back a requested cancel.
UPDATE redrive_jobs SET lease_until = ?3
WHERE id = ?1 AND epoch = ?2 AND state = 2
RETURNING cancel_requested
