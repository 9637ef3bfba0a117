-- What is due in one lane, earliest first, read from the index of claimable rows alone. What no claimable row has, and
-- what the claim is about to set, is not read.
SELECT seq, id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at,
  NULL AS started_at, NULL AS lease_until, NULL AS finished_at, wait_ms, timeout_ms, 0 AS cancel_requested, tenant, policy,
  NULL AS worker, key, NULL AS reason, last_error, metadata, payload, NULL AS output,
  lease_ms, subject, last_status, parent, branch, held, NULL AS awaits, awaits_name, awaits_branch, awaits_failures, partition, strict, detached
FROM redrive_jobs INDEXED BY redrive_due
WHERE state < 2 AND lane = ?1 AND next_run_at <= ?2
ORDER BY next_run_at, id LIMIT ?3
