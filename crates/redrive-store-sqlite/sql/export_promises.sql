-- Unique keys that are promised beyond the end of their job, which is gone.
SELECT tenant, kind, key, job, until FROM redrive_uniques INDEXED BY redrive_unique_jobs
WHERE job > ?1 AND until > ?2 AND NOT EXISTS (SELECT 1 FROM redrive_jobs WHERE id = redrive_uniques.job)
ORDER BY job LIMIT ?3
