-- The oldest signal by a name that no step has taken.
SELECT seq, value FROM redrive_signals INDEXED BY redrive_untaken
WHERE job = ?1 AND name = ?2 AND taken = 0 ORDER BY seq LIMIT 1
