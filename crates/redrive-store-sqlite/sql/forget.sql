-- Forgets the steps of a job.
DELETE FROM redrive_steps WHERE job = ?1
