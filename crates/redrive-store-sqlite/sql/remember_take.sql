-- Marks a signal of a job as taken, once; ?1 the job, ?2 the signal. What it said is in the step from now on.
UPDATE redrive_signals SET taken = 1, value = x'' WHERE job = ?1 AND id = ?2 AND taken = 0
