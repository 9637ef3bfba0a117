-- How many children of a branch are dead or cancelled, counted up to ?3.
SELECT count(*) FROM (
  SELECT 1 FROM redrive_jobs INDEXED BY redrive_children WHERE parent = ?1 AND branch = ?2 AND state > 4 LIMIT ?3
)
