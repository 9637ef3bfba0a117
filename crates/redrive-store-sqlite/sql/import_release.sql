-- Takes the unique keys of a job that is imported again.
DELETE FROM redrive_uniques WHERE job = ?1
