-- Jobs in the order of their ids, read from the index of ids.
SELECT seq, id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
  wait_ms, timeout_ms, cancel_requested, tenant, policy, worker, key, reason, last_error, metadata, payload, output,
  lease_ms, subject, last_status, parent, branch, held, awaits, awaits_name, awaits_branch, awaits_failures, partition, strict, detached
FROM redrive_jobs WHERE id > ?1 ORDER BY id LIMIT ?2
