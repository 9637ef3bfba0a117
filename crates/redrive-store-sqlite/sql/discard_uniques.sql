-- Gives up the unique keys of a job that goes, unless they were promised for longer.
DELETE FROM redrive_uniques WHERE job = ?1 AND (until IS NULL OR until <= ?2)
