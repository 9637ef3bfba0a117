-- Adds jobs exactly as they were elsewhere, and counts them. One whose id or key was taken meanwhile is not added.
WITH added AS (
  INSERT INTO redrive.jobs (
    id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
    wait_ms, timeout_ms, lease_ms, cancel_requested, last_status, tenant, policy, worker, key, reason, subject,
    last_error, metadata, payload, output, parent, branch, awaits, awaits_name, awaits_branch, awaits_failures, held,
    partition, strict, detached, fingerprint
  )
  SELECT * FROM unnest(
    $1::uuid[], $2::integer[], $3::smallint[], $4::bigint[], $5::integer[], $6::integer[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::bigint[], $16::boolean[], $17::integer[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[],
    $23::text[], $24::text[], $25::text[], $26::bytea[], $27::bytea[], $28::uuid[], $29::integer[], $30::smallint[],
    $31::text[], $32::integer[], $33::bigint[], $34::boolean[], $35::text[], $36::boolean[], $37::boolean[],
    $38::bytea[]
  )
  ON CONFLICT DO NOTHING
  RETURNING lane, state
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, count(*) FROM added GROUP BY lane, state
)
SELECT count(*) AS added FROM added
