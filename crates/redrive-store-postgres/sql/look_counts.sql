-- Counts by lane and state, from the changes that every write adds.
SELECT lane, state, sum(jobs)::bigint AS jobs FROM redrive.counts GROUP BY lane, state HAVING sum(jobs) > 0
