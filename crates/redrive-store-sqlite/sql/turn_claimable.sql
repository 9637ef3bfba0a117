-- How many jobs of a partition that keep no order could be claimed now, counted up to ?3.
SELECT count(*) FROM (
  SELECT 1 FROM redrive_jobs INDEXED BY redrive_partitions
  WHERE partition = ?1 AND state IN (0, 1) AND next_run_at <= ?2 AND strict = 0 LIMIT ?3
)
