-- Moves the contents of a store: export and import.

-- name: export
-- Reads jobs in the order of their ids, each with its unique key and the approximate size of its attempts, steps and signals, so that
-- the caller can cut the page before it reads these. 256 is the cost of a row apart from its long columns. $1 the id to continue after,
-- or NULL; $2 the maximum number of jobs.
SELECT
  {job_columns},
  jobs.fingerprint, held.key AS unique_key, held.until AS unique_until,
  (SELECT coalesce(sum(256 + coalesce(octet_length(error), 0) + coalesce(octet_length(detail), 0)), 0)
    FROM redrive.attempts WHERE attempts.job = jobs.id)::bigint
  + (SELECT coalesce(sum(256 + octet_length(value)), 0) FROM redrive.steps WHERE steps.job = jobs.id)::bigint
  + (SELECT coalesce(sum(256 + octet_length(value)), 0) FROM redrive.signals WHERE signals.job = jobs.id)::bigint AS bytes
FROM redrive.all_jobs AS jobs
LEFT JOIN LATERAL (SELECT key, until FROM redrive.uniques WHERE uniques.job = jobs.id LIMIT 1) AS held ON true
WHERE jobs.id > $1::uuid OR $1::uuid IS NULL
ORDER BY jobs.id LIMIT $2::bigint;

-- name: export_attempts
-- Reads the attempts of jobs, oldest first. $1 the ids.
SELECT
  epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at, job
FROM redrive.attempts WHERE job = ANY (ARRAY(SELECT unnest($1::uuid[]))) ORDER BY job, epoch;

-- name: export_steps
-- Reads the steps of jobs in their order. $1 the ids.
SELECT place, name, kind, value, job FROM redrive.steps WHERE job = ANY (ARRAY(SELECT unnest($1::uuid[]))) ORDER BY job, place;

-- name: export_signals
-- Reads the signals of jobs in the order of their arrival, those that were taken too: the values of these are in steps. $1 the ids.
SELECT id, name, CASE WHEN taken THEN ''::bytea ELSE value END AS value, taken, job
FROM redrive.signals WHERE job = ANY (ARRAY(SELECT unnest($1::uuid[]))) ORDER BY job, seq;

-- name: export_reserved_keys
-- Reads unique keys that are still reserved although their job was removed. $1 the time, NULL for the server's clock; $2 the
-- job to continue after, or NULL; $3 the maximum number of keys.
WITH {clock}
SELECT tenant, kind, key, job, until FROM clock, redrive.uniques
WHERE gone AND until > clock.now AND (job > $2::uuid OR $2::uuid IS NULL)
ORDER BY job LIMIT $3::bigint;

-- name: lock_imports
-- Makes imports run one after the other, so that no import changes the rows that another has read. $1 and $2 the lock.
SELECT pg_advisory_xact_lock($1::integer, $2::integer);

-- name: find_conflicts
-- Reads the rows that conflict with jobs that are to be imported: the job itself, the holders of its keys, and whether it may be replaced.
-- $1 the time, NULL for the server's clock; $2 to $6 ids, tenants, idempotency keys, kinds and unique keys.
WITH {clock}, given AS MATERIALIZED (
  SELECT * FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[])
    WITH ORDINALITY AS given (id, tenant, key, kind, unique_key, place)
)
SELECT
  given.place, same_id.id IS NOT NULL AS is_stored, same_key.id AS key_holder, uniques.job AS unique_holder,
  coalesce(holder.id IS NOT NULL AND holder_end.id IS NULL OR uniques.until > clock.now, false) AS in_force,
  EXISTS (
    SELECT FROM redrive.records WHERE records.kind = 'sealed' AND records.id = 'being-filled' AND records.value IS NOT NULL
  ) AS being_filled
FROM clock, given
LEFT JOIN redrive.jobs AS same_id ON same_id.id = given.id
LEFT JOIN redrive.jobs AS same_key ON same_key.tenant = given.tenant AND same_key.key = given.key
LEFT JOIN redrive.uniques ON uniques.tenant = given.tenant AND uniques.kind = given.kind AND uniques.key = given.unique_key
LEFT JOIN redrive.jobs AS holder ON holder.id = uniques.job
LEFT JOIN redrive.ended AS holder_end ON holder_end.id = uniques.job
ORDER BY given.place;

-- name: import_jobs
-- Adds jobs exactly as they were in the other store, and counts them. A job whose id or key was taken meanwhile is not added.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(
    $1::uuid[], $2::integer[], $3::smallint[], $4::bigint[], $5::integer[], $6::integer[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::bigint[], $16::boolean[], $17::integer[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[],
    $23::text[], $24::text[], $25::text[], $26::bytea[], $27::bytea[], $28::uuid[], $29::integer[], $30::smallint[],
    $31::text[], $32::integer[], $33::bigint[], $34::boolean[], $35::text[], $36::boolean[], $37::boolean[],
    $38::bytea[]
  ) AS given ({job_column_names}, fingerprint)
), content AS (
  INSERT INTO redrive.jobs (
    id, due, created_at, timeout_ms, lease_ms, parent, lane, branch, detached, strict, tenant, policy, key, fingerprint, target,
    partition, metadata, payload
  )
  SELECT
    id, next_run_at, created_at, timeout_ms, lease_ms, parent, lane, branch, detached, strict, tenant, policy, key, fingerprint,
    target, partition, metadata, payload
  FROM given
  ON CONFLICT DO NOTHING
  RETURNING id
), added AS MATERIALIZED (
  SELECT given.* FROM given JOIN content USING (id)
), progress AS (
  INSERT INTO redrive.progress (
    id, epoch, began_at, next_run_at, started_at, wait_ms, run, attempt, last_status, paused, has_children, worker, last_error
  )
  SELECT
    id, CASE WHEN state = 2 THEN greatest(epoch - 1, 0) ELSE epoch END, began_at, next_run_at, started_at, wait_ms, run,
    CASE WHEN state = 2 THEN attempt - 1 ELSE attempt END, last_status, paused, true, worker, last_error
  FROM added
), ready AS (
  INSERT INTO redrive.ready (due, id, lease_ms, lane, state, progress, awaiting, partition, strict)
  SELECT next_run_at, id, lease_ms, lane, state, true, awaits IS NOT NULL, partition, strict FROM added WHERE state < 2
), waiting AS (
  INSERT INTO redrive.waiting (id, due, awaits_failures, lane, awaits_branch, awaits, strict, awaits_name, partition)
  SELECT id, next_run_at, awaits_failures, lane, awaits_branch, awaits, strict, awaits_name, partition
  FROM added WHERE awaits IS NOT NULL AND state IN (0, 1, 3)
), claims AS (
  -- A claim of its own keeps the epoch of each running job.
  INSERT INTO redrive.claims (claim, part, lease_until, started_at, reclaims, whole, worker, cancels, ids)
  SELECT
    epoch >> 16, nextval('redrive.claim_numbers'), coalesce(lease_until, 0), started_at, CASE WHEN epoch = 0 THEN -1 ELSE 0 END, false,
    worker, CASE WHEN cancel_requested THEN ARRAY[id] END, ARRAY[id]
  FROM added WHERE state = 2
), ended AS (
  INSERT INTO redrive.ended (
    id, epoch, finished_at, started_at, attempt, last_status, state, cancel_requested, worker, reason, last_error, output
  )
  SELECT
    id, epoch, coalesce(finished_at, 0), started_at, attempt, last_status, state, cancel_requested, worker, reason, last_error, output
  FROM added WHERE state > 3
), children AS (
  INSERT INTO redrive.children (parent, id, branch, stage, detached)
  SELECT parent, id, branch, CASE WHEN state > 4 THEN 2 WHEN cancel_requested THEN 1 ELSE 0 END, detached
  FROM added WHERE parent IS NOT NULL AND state <> 4
), slots AS (
  INSERT INTO redrive.slots (partition, id) SELECT partition, id FROM added WHERE partition IS NOT NULL AND state = 2
), ordered AS (
  INSERT INTO redrive.ordered (partition, id) SELECT partition, id FROM added WHERE strict AND partition IS NOT NULL AND state < 4
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, count(*) FROM added GROUP BY lane, state
)
SELECT count(*) AS added, coalesce(max(epoch) >> 16, 0) AS last_claim FROM added;

-- name: continue_claim_numbers
-- Makes later claims have numbers above this one ($1), so that the epochs of imported jobs only grow.
SELECT setval('redrive.claim_numbers', greatest(last_value, $1::bigint)) FROM redrive.claim_numbers WHERE last_value < $1::bigint;

-- name: import_attempts
-- Adds the attempts of imported jobs.
INSERT INTO redrive.attempts (
  job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at
)
SELECT * FROM unnest(
  $1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::text[],
  $10::text[], $11::smallint[], $12::bigint[], $13::bigint[]
);

-- name: import_steps
-- Adds the steps of imported jobs.
INSERT INTO redrive.steps (job, place, kind, name, value)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::bytea[]);

-- name: import_signals
-- Adds the signals of imported jobs, taken or not, in the given order.
INSERT INTO redrive.signals (job, id, name, value, taken)
SELECT job, id, name, value, taken
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::boolean[])
  WITH ORDINALITY AS given (job, id, name, value, taken, ordinal)
ORDER BY ordinal;

-- name: import_unique_keys
-- Gives unique keys to jobs. A key changes hands only if its holder is still the one that was read before ($6). A key whose job was
-- removed is stored as reserved.
INSERT INTO redrive.uniques (tenant, kind, key, job, until, gone)
SELECT given.tenant, given.kind, given.key, given.job, given.until, NOT EXISTS (SELECT FROM redrive.jobs WHERE id = given.job)
FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::bigint[]) AS given (tenant, kind, key, job, until)
ORDER BY given.tenant, given.kind, given.key
ON CONFLICT (tenant, kind, key) DO UPDATE SET job = excluded.job, until = excluded.until, gone = excluded.gone
WHERE uniques.job = (
  SELECT seen.holder FROM unnest($1::text[], $2::text[], $3::text[], $6::uuid[]) AS seen (tenant, kind, key, holder)
  WHERE seen.tenant = excluded.tenant AND seen.kind = excluded.kind AND seen.key = excluded.key
)
RETURNING job;

-- name: remove_for_import
-- Removes jobs that are imported again, with their attempts, steps, signals and unique keys. $1 the ids.
WITH gone AS MATERIALIZED (
  SELECT id, lane, state, parent, branch, partition, epoch FROM redrive.all_jobs WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), content AS (
  DELETE FROM redrive.jobs WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), progress AS (
  DELETE FROM redrive.progress WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), ready AS (
  DELETE FROM redrive.ready USING redrive.all_jobs AS found
  WHERE found.id = ANY (ARRAY(SELECT unnest($1::uuid[]))) AND ready.lane = found.lane AND ready.due = found.next_run_at AND ready.id = found.id
), waiting AS (
  DELETE FROM redrive.waiting WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), ended AS (
  DELETE FROM redrive.ended WHERE id = ANY (ARRAY(SELECT unnest($1::uuid[])))
), claims AS (
  UPDATE redrive.claims SET whole = false, ids = ARRAY(
    SELECT listed.id FROM unnest(claims.ids) AS listed (id)
    JOIN redrive.all_jobs AS running ON running.id = listed.id AND running.state = 2 AND running.epoch >> 16 = claims.claim
    WHERE listed.id NOT IN (SELECT gone.id FROM gone)
    ORDER BY listed.id
  )
  WHERE claims.ids && $1::uuid[]
), live_children AS (
  DELETE FROM redrive.children USING gone
  WHERE children.parent = gone.parent AND children.branch = gone.branch AND children.stage < 2 AND children.id = gone.id
), failed_children AS (
  DELETE FROM redrive.children USING gone
  WHERE children.parent = gone.parent AND children.branch = gone.branch AND children.stage = 2 AND children.id = gone.id
), slots AS (
  DELETE FROM redrive.slots USING gone WHERE slots.partition = gone.partition AND slots.id = gone.id
), ordered AS (
  DELETE FROM redrive.ordered USING gone WHERE ordered.partition = gone.partition AND ordered.id = gone.id
), log AS (
  DELETE FROM redrive.attempts WHERE job = ANY (ARRAY(SELECT unnest($1::uuid[])))
), steps AS (
  DELETE FROM redrive.steps WHERE job = ANY (ARRAY(SELECT unnest($1::uuid[])))
), signals AS (
  DELETE FROM redrive.signals WHERE job = ANY (ARRAY(SELECT unnest($1::uuid[])))
), released AS (
  DELETE FROM redrive.uniques WHERE job = ANY (ARRAY(SELECT unnest($1::uuid[])))
)
INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, -count(*) FROM gone GROUP BY lane, state;

-- name: export_records
-- Reads records of every kind, including floors and tombstones. $1 and $2 the kind and the id to continue after; $3 the maximum
-- number of records.
SELECT kind, id, version, value FROM redrive.records WHERE (kind, id) > ($1::text, $2::text) ORDER BY kind, id LIMIT $3::bigint;

-- name: import_records
-- Writes records with their versions, unless the store has a version that is as new: versions only grow. Returns the written records.
INSERT INTO redrive.records (kind, id, version, value)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) AS given (kind, id, version, value)
ORDER BY given.kind, given.id
ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, value = excluded.value
WHERE records.version < excluded.version
RETURNING kind, id;
