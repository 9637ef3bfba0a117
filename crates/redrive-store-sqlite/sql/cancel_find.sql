-- Where a job is and how far it has come.
SELECT seq, id, lane, state, partition FROM redrive_jobs WHERE id = ?1
