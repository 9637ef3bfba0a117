-- A job's signals that no step has taken, in the order in which they came; ?2 lists the names as JSON.
SELECT id, name, value FROM redrive_signals INDEXED BY redrive_untaken
WHERE job = ?1 AND name IN (SELECT value FROM json_each(?2)) AND taken = 0
ORDER BY seq LIMIT ?3
