-- How many jobs of a partition run.
SELECT count(*) FROM redrive_jobs INDEXED BY redrive_partitions WHERE partition = ?1 AND state = 2
