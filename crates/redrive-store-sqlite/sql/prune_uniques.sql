-- Removes unique keys whose time is over and whose job has gone before.
DELETE FROM redrive_uniques WHERE (tenant, kind, key) IN (
  SELECT tenant, kind, key FROM redrive_uniques INDEXED BY redrive_unique_until
  WHERE until <= ?1 AND NOT EXISTS (SELECT 1 FROM redrive_jobs WHERE id = redrive_uniques.job)
  LIMIT ?2
)
