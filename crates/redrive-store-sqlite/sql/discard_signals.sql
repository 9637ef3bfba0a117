-- Removes the signals of a job that goes.
DELETE FROM redrive_signals WHERE job = ?1
