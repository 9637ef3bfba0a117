-- Counts by queue and state, from the counts that every write keeps.
SELECT queue, state, sum(jobs) FROM redrive_counts JOIN redrive_lanes USING (lane)
GROUP BY queue, state HAVING sum(jobs) <> 0
