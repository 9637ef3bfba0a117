-- What is due in one lane, earliest first, read from the index of claimable rows alone.
SELECT seq, id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
  wait_ms, timeout_ms, cancel_requested, tenant, policy, worker, key, reason, last_error, metadata, payload, output
FROM redrive_jobs INDEXED BY redrive_due
WHERE state < 2 AND lane = ?1 AND next_run_at <= ?2
ORDER BY next_run_at, id LIMIT ?3
