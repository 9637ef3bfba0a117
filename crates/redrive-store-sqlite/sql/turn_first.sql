-- Which job of a partition in strict order comes first, of those that have not ended, and whether it waits for its turn.
SELECT id, awaits IS 3 FROM redrive_jobs INDEXED BY redrive_strict WHERE partition = ?1 AND strict = 1 AND state < 4 ORDER BY id LIMIT 1
