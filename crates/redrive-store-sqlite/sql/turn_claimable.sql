-- How many jobs of a partition could be claimed now.
SELECT count(*) FROM redrive_jobs INDEXED BY redrive_partitions
WHERE partition = ?1 AND state IN (0, 1) AND next_run_at <= ?2
