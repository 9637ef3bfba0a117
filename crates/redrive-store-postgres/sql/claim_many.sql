-- Lanes of the same priority share by due time: each gets as many places as it has among the first.
chosen AS MATERIALIZED (
  SELECT wanted.*, quotas.quota
  FROM wanted
  JOIN (
    SELECT first.lane, count(*) AS quota
    FROM (
      SELECT wanted.lane
      FROM wanted, clock
      CROSS JOIN LATERAL (
        SELECT jobs.next_run_at, jobs.id FROM redrive.jobs
        WHERE jobs.lane = wanted.lane AND jobs.state < 2 AND jobs.next_run_at <= clock.now
          AND (jobs.next_run_at, jobs.id) >= (wanted.from_at, wanted.from_id)
        ORDER BY jobs.next_run_at, jobs.id
        LIMIT wanted.most
      ) AS due
      ORDER BY wanted.priority DESC, due.next_run_at, due.id
      LIMIT $4::bigint
    ) AS first
    GROUP BY first.lane
  ) AS quotas USING (lane)
  ORDER BY wanted.priority DESC
),
