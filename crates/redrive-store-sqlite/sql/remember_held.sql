-- A lease that is still held, and whether the job's end was requested: the epoch shuts out a worker whose lease was reclaimed
-- meanwhile.
SELECT cancel_requested FROM redrive_jobs WHERE seq = ?1 AND id = ?2 AND epoch = ?3 AND state = 2
