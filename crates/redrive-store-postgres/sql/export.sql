-- Jobs in the order of their ids, each with its unique key and about how much belongs to it, so that what is too much for
-- one answer is known before it is read. 256 is what a row costs beside its long columns.
SELECT
  jobs.id, jobs.lane, jobs.state, jobs.next_run_at, jobs.run, jobs.attempt, jobs.epoch, jobs.created_at,
  jobs.began_at, jobs.started_at, jobs.lease_until, jobs.finished_at, jobs.wait_ms, jobs.timeout_ms, jobs.lease_ms,
  jobs.cancel_requested, jobs.last_status, jobs.tenant, jobs.policy, jobs.worker, jobs.key, jobs.reason,
  jobs.subject, jobs.last_error, jobs.metadata, jobs.payload, jobs.output, jobs.parent, jobs.branch, jobs.awaits,
  jobs.awaits_name, jobs.awaits_branch, jobs.awaits_failures, jobs.held, jobs.partition, jobs.strict, jobs.detached,
  jobs.fingerprint, held.key AS unique_key, held.until AS unique_until,
  (SELECT coalesce(sum(256 + coalesce(octet_length(error), 0) + coalesce(octet_length(detail), 0)), 0)
    FROM redrive.attempts WHERE attempts.job = jobs.id)::bigint
  + (SELECT coalesce(sum(256 + octet_length(value)), 0) FROM redrive.steps WHERE steps.job = jobs.id)::bigint
  + (SELECT coalesce(sum(256 + octet_length(value)), 0) FROM redrive.signals WHERE signals.job = jobs.id)::bigint AS bytes
FROM redrive.jobs
LEFT JOIN LATERAL (SELECT key, until FROM redrive.uniques WHERE uniques.job = jobs.id LIMIT 1) AS held ON true
WHERE jobs.id > $1::uuid OR $1::uuid IS NULL
ORDER BY jobs.id LIMIT $2::bigint
