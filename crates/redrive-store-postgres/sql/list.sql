-- Jobs that match, newest id first; the conditions that are set follow.
SELECT
  jobs.id, jobs.lane, jobs.state, jobs.next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until,
  finished_at, wait_ms, timeout_ms, lease_ms, cancel_requested, last_status, tenant, policy, worker, key, reason,
  subject, last_error, metadata, payload, output, parent, branch, awaits, awaits_name, awaits_branch,
  awaits_failures, held, partition, strict, detached
FROM redrive.jobs WHERE
