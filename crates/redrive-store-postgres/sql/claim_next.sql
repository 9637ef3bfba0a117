-- When the first job of each queue is due, over the lanes ($1) of a claim.
SELECT lanes.queue, min(first.next_run_at) AS due
FROM unnest($1::integer[]) AS asked (lane)
JOIN redrive.lanes USING (lane)
CROSS JOIN LATERAL (
  SELECT jobs.next_run_at FROM redrive.jobs
  WHERE jobs.lane = asked.lane AND jobs.state < 2
  ORDER BY jobs.next_run_at, jobs.id
  LIMIT 1
) AS first
GROUP BY lanes.queue
