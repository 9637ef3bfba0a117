-- Counts by lane and state, from the counts that every write keeps.
SELECT lane, state, jobs FROM redrive_counts WHERE jobs > 0
