-- Counts by queue and state, from the changes that every write adds, and the job that has been due for longest. $1 the
-- time, none for the server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), oldest AS (
  SELECT min(first.next_run_at) AS due FROM clock, redrive.lanes
  CROSS JOIN LATERAL (
    SELECT jobs.next_run_at FROM redrive.jobs
    WHERE jobs.lane = lanes.lane AND jobs.state < 2 AND jobs.next_run_at <= clock.now
    ORDER BY jobs.next_run_at, jobs.id LIMIT 1
  ) AS first
), totals AS (
  SELECT queue, state, sum(jobs)::bigint AS jobs FROM redrive.counts JOIN redrive.lanes USING (lane)
  GROUP BY queue, state HAVING sum(jobs) <> 0
)
SELECT clock.now, oldest.due, totals.queue, totals.state, totals.jobs
FROM clock CROSS JOIN oldest LEFT JOIN totals ON true
