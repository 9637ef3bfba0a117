-- Leases what is due, never more than $4 rows, and charges each an attempt, in one write. What another claim has its hands
-- on is passed over. A row may ask for a lease of its own. $8 the worker, $9 its lease. Nothing is leased if a lane is bounded:
-- who may start then is not for one statement to say.
bounded AS MATERIALIZED (SELECT coalesce(bool_or(wanted.bounded), false) AS yes FROM wanted),
due AS MATERIALIZED (
  SELECT due.* FROM clock, chosen
  CROSS JOIN LATERAL (
    SELECT jobs.ctid AS place, jobs.id, jobs.lane, jobs.state, jobs.next_run_at FROM redrive.jobs
    WHERE jobs.lane = chosen.lane AND jobs.state < 2 AND jobs.next_run_at <= clock.now
      AND (jobs.next_run_at, jobs.id) >= (chosen.from_at, chosen.from_id)
    ORDER BY jobs.next_run_at, jobs.id
    LIMIT chosen.quota
    FOR UPDATE SKIP LOCKED
  ) AS due
  WHERE NOT (SELECT bounded.yes FROM bounded)
  LIMIT $4::bigint
), claimed AS (
  UPDATE redrive.jobs
  SET state = 2, attempt = attempt + 1, epoch = epoch + 1, started_at = clock.now,
    lease_until = clock.now + coalesce(lease_ms, $9::bigint), worker = $8::text, awaits = NULL
  FROM due, clock
  WHERE jobs.ctid = due.place
  RETURNING
    jobs.id, jobs.lane, jobs.state, jobs.next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until,
    finished_at, wait_ms, timeout_ms, lease_ms, cancel_requested, last_status, tenant, policy, worker, key, reason,
    subject, last_error, metadata, payload, output, parent, branch, awaits, awaits_name, awaits_branch,
    awaits_failures, held, partition, strict, detached
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT lane, state, -count(*) FROM due GROUP BY lane, state
  UNION ALL
  SELECT lane, 2, count(*) FROM due GROUP BY lane
), next AS (
  SELECT min(later.next_run_at) AS due
  FROM wanted
  LEFT JOIN LATERAL (
    SELECT due.next_run_at, due.id FROM due WHERE due.lane = wanted.lane
    ORDER BY due.next_run_at DESC, due.id DESC LIMIT 1
  ) AS last ON true
  CROSS JOIN LATERAL (
    SELECT jobs.next_run_at FROM redrive.jobs
    WHERE jobs.lane = wanted.lane AND jobs.state < 2
      AND (jobs.next_run_at, jobs.id) >= (coalesce(last.next_run_at, wanted.from_at), coalesce(last.id, wanted.from_id))
      AND jobs.id IS DISTINCT FROM last.id
    ORDER BY jobs.next_run_at, jobs.id
    LIMIT 1
  ) AS later
)
SELECT claimed.*, clock.now, next.due, bounded.yes AS bounded
FROM clock CROSS JOIN next CROSS JOIN bounded LEFT JOIN claimed ON true
