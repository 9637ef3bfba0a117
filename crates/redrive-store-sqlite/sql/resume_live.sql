-- Whether a child of a branch has not ended: one step in the index, however many there are.
SELECT 1 FROM redrive_jobs INDEXED BY redrive_children WHERE parent = ?1 AND branch = ?2 AND state < 4 LIMIT 1
