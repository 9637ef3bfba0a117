-- Moves a count; runs once for each lane and state that a group of writes touched.
INSERT INTO redrive_counts (lane, state, jobs) VALUES (?1, ?2, ?3)
ON CONFLICT (lane, state) DO UPDATE SET jobs = jobs + excluded.jobs
