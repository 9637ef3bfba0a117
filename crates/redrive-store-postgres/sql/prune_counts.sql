-- Adds up changes of counts. The sums stay what they are at every moment; rows that another node adds up are passed over.
WITH chosen AS (
  SELECT ctid FROM redrive.counts LIMIT 100000 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM redrive.counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen)) RETURNING lane, state, jobs
)
INSERT INTO redrive.counts (lane, state, jobs)
SELECT lane, state, sum(jobs) FROM gone GROUP BY lane, state HAVING sum(jobs) <> 0
