-- Whether a signal by a name is there that no step has taken.
SELECT 1 FROM redrive_signals INDEXED BY redrive_untaken WHERE job = ?1 AND name = ?2 AND taken = 0 LIMIT 1
