-- Adds a job unless its id or its tenant and key are taken: a repeated enqueue changes nothing.
INSERT INTO redrive_jobs
  (id, lane, state, next_run_at, created_at, began_at, timeout_ms, tenant, policy, key, fingerprint, metadata, payload,
   lease_ms, subject, parent, branch, partition, strict, detached)
VALUES (?1, ?2, 0, ?3, ?4, ?3, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
ON CONFLICT DO NOTHING
