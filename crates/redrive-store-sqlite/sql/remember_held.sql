-- Whether a lease is still held: the epoch shuts out a worker whose lease was reclaimed meanwhile.
SELECT 1 FROM redrive_jobs WHERE seq = ?1 AND id = ?2 AND epoch = ?3 AND state = 2
