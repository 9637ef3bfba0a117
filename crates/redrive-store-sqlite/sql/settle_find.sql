-- Where a leased row is, for a lease that this process did not take itself.
SELECT seq, lane, worker, partition FROM redrive_jobs WHERE id = ?1
