-- How many jobs ended so from ?2 on and before ?3, counted up to ?4.
SELECT count(*) FROM (
  SELECT 1 FROM redrive_jobs WHERE state = ?1 AND finished_at >= ?2 AND finished_at < ?3 LIMIT ?4
)
