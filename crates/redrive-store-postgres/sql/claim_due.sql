-- Locks what is due for a claim that has to decide about each. What another claim has its hands on is passed over.
due AS MATERIALIZED (
  SELECT due.* FROM clock, chosen
  CROSS JOIN LATERAL (
    SELECT jobs.id, jobs.lane, jobs.state, jobs.next_run_at, jobs.partition, jobs.strict FROM redrive.jobs
    WHERE jobs.lane = chosen.lane AND jobs.state < 2 AND jobs.next_run_at <= clock.now
    ORDER BY jobs.next_run_at, jobs.id
    LIMIT chosen.quota
    FOR UPDATE SKIP LOCKED
  ) AS due
  LIMIT $4::bigint
)
SELECT due.* FROM due JOIN redrive.lanes USING (lane) ORDER BY lanes.priority DESC, due.next_run_at, due.id
