-- Leases that have run out, longest ago first.
SELECT seq, id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
  wait_ms, timeout_ms, cancel_requested, tenant, policy, worker, key, reason, last_error, metadata, payload, output
FROM redrive_jobs INDEXED BY redrive_leases
WHERE state = 2 AND lease_until <= ?1
ORDER BY lease_until, id LIMIT ?2
