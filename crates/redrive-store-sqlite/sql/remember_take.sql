-- Marks a signal as taken. What it said is in the step from now on.
UPDATE redrive_signals SET taken = 1, value = x'' WHERE seq = ?1
