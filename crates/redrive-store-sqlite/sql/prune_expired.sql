-- Jobs of one final state that ended long enough ago, longest first. Children stay as long as their parent may ask for them.
SELECT id, lane FROM redrive_jobs INDEXED BY redrive_finished
WHERE state = ?1 AND finished_at IS NOT NULL AND finished_at <= ?2
  AND NOT EXISTS (SELECT 1 FROM redrive_jobs parent WHERE parent.id = redrive_jobs.parent AND parent.state < 4)
ORDER BY finished_at, id LIMIT ?3
