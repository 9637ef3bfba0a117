-- Leases that have run out and are not the caller's own, longest ago first; ?3 lists the lanes to look at as JSON, or is NULL
-- for all; ?4 lists the caller's leases as JSON, each as ID:EPOCH.
SELECT seq, id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
  wait_ms, timeout_ms, cancel_requested, tenant, policy, worker, key, reason, last_error, metadata, payload, output,
  lease_ms, subject, last_status, parent, branch, held, awaits, awaits_name, awaits_branch, awaits_failures, partition, strict, detached
FROM redrive_jobs INDEXED BY redrive_leases
WHERE state = 2 AND lease_until <= ?1 AND (?3 IS NULL OR lane IN (SELECT value FROM json_each(?3)))
  AND hex(id) || ':' || epoch NOT IN (SELECT value FROM json_each(?4))
ORDER BY lease_until, id LIMIT ?2
