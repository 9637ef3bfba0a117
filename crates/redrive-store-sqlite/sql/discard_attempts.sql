-- Removes the log of a job that goes.
DELETE FROM redrive_attempts WHERE job = ?1
