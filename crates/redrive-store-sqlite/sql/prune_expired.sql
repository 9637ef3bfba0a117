-- Jobs of one final state that ended long enough ago, longest first.
SELECT id, lane FROM redrive_jobs INDEXED BY redrive_finished
WHERE state = ?1 AND finished_at IS NOT NULL AND finished_at <= ?2
ORDER BY finished_at, id LIMIT ?3
