-- What a job waits for, if it does, and whether it is held.
SELECT seq, lane, state, awaits, awaits_name, awaits_branch, awaits_failures, held, partition, strict, next_run_at, started_at
FROM redrive_jobs WHERE id = ?1 AND awaits IS NOT NULL
