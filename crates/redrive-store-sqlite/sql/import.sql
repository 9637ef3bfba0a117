-- Adds a job exactly as it was elsewhere; whoever had its id has gone before in the same transaction.
INSERT INTO redrive_jobs (
  id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
  wait_ms, timeout_ms, cancel_requested, tenant, policy, worker, key, fingerprint, reason, last_error, metadata,
  payload, output, lease_ms, subject, last_status, parent, branch, held, awaits, awaits_name, awaits_branch,
  awaits_failures, partition, strict, detached
) VALUES (
  ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25,
  ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38
)
