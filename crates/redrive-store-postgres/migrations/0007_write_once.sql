-- A job's row is written once. Small tables, whose rows are only inserted and deleted, say where the job is:
--
--   ready      it can be claimed when it is due
--   claims     it runs: one row for each claim lists the jobs that the claim took
--   waiting    it waits for a signal, for children, for the end of a pause or for a free slot
--   ended      it has ended
--
-- A job is in exactly one of them, except that a job that waits with a timeout is in `waiting` and in `ready`. What a job has
-- gathered on its way (attempts, waits, the last error) is in `progress`, which jobs that succeed at once never enter.
--
-- Nodes of earlier versions cannot work with these tables. All of them must be stopped before this migration.

ALTER TABLE redrive.jobs RENAME TO old_jobs;
ALTER INDEX redrive.jobs_pkey RENAME TO old_jobs_pkey;
DROP INDEX redrive.jobs_due, redrive.jobs_leases, redrive.jobs_finished, redrive.jobs_keys, redrive.jobs_dead,
  redrive.jobs_children, redrive.jobs_awaiting, redrive.jobs_partitions, redrive.jobs_strict, redrive.jobs_turns;

-- A lane with live jobs, or used within the last day, is not idle. Claims read lanes that are not idle.
ALTER TABLE redrive.lanes
  ADD COLUMN idle    boolean NOT NULL DEFAULT false,
  ADD COLUMN used_at bigint NOT NULL DEFAULT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint;

-- Wide columns come first and long ones last: there is no padding, and a claim or a list need not read the payload.
CREATE TABLE redrive.jobs (
  id          uuid PRIMARY KEY,
  -- When the job was first due. Later due times are in `progress`.
  due         bigint NOT NULL,
  created_at  bigint NOT NULL,
  timeout_ms  bigint,
  lease_ms    bigint,
  parent      uuid,
  lane        integer NOT NULL,
  branch      integer,
  -- Whether a child continues when its parent ends as cancelled or dead.
  detached    boolean NOT NULL DEFAULT false,
  strict      boolean NOT NULL DEFAULT false,
  tenant      text COLLATE "C" NOT NULL,
  policy      text COLLATE "C" NOT NULL,
  key         text COLLATE "C",
  fingerprint bytea,
  target      text COLLATE "C",
  -- The partition of a job: the name of the queue, a unit separator, the partition key. Its jobs share limits or run in order.
  partition   text COLLATE "C",
  metadata    text,
  payload     bytea NOT NULL
);

CREATE UNIQUE INDEX jobs_keys ON redrive.jobs (tenant, key) WHERE key IS NOT NULL;

-- Jobs that can be claimed when they are due, in the order in which claims take them.
CREATE TABLE redrive.ready (
  due       bigint NOT NULL,
  id        uuid NOT NULL,
  -- The duration of a lease, if the job has one of its own.
  lease_ms  bigint,
  lane      integer NOT NULL,
  -- 0 pending, 1 retrying.
  state     smallint NOT NULL DEFAULT 0,
  -- Whether the job has a row in `progress`.
  progress  boolean NOT NULL DEFAULT false,
  -- Whether the job has a row in `waiting`. Then its due time ends the wait.
  awaiting  boolean NOT NULL DEFAULT false,
  -- Whether the jobs of its partition run in strict order.
  strict    boolean NOT NULL DEFAULT false,
  partition text COLLATE "C",
  PRIMARY KEY (lane, due, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000);

-- Counts the claimable jobs of a partition.
CREATE INDEX ready_partitions ON redrive.ready (partition, due) WHERE partition IS NOT NULL;

-- Claims take their numbers from here. A later claim has a larger number.
CREATE SEQUENCE redrive.claim_numbers;

-- One row for each claim: who runs these jobs, and until when. It is removed with the last of its jobs. A write of a worker locks the row
-- (FOR KEY SHARE) and is refused if the row is gone or, where `whole` is false, no longer lists the job. A statement that takes jobs
-- away from a worker, or asks it to stop one, locks the row FOR UPDATE first, and so waits for the writes of the worker.
CREATE TABLE redrive.claims (
  claim       bigint NOT NULL,
  -- The parts of a claim have different leases: some of its jobs were renewed and others were not.
  part        bigint NOT NULL DEFAULT 0,
  lease_until bigint NOT NULL,
  started_at  bigint,
  -- How often these jobs were reclaimed since their last settlement.
  reclaims    integer NOT NULL DEFAULT 0,
  -- A whole claim lists every job that it took, settled or not. Once some were taken away or renewed separately, it lists the
  -- running ones only.
  whole       boolean NOT NULL DEFAULT true,
  worker      text,
  -- The jobs that someone asked the worker to stop.
  cancels     uuid[],
  -- The jobs, in order.
  ids         uuid[] NOT NULL,
  -- Most claims do not list a given job. These columns show it without a look at the list.
  first_id    uuid GENERATED ALWAYS AS (ids[1]) STORED,
  last_id     uuid GENERATED ALWAYS AS (ids[cardinality(ids)]) STORED,
  PRIMARY KEY (claim, part)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000, fillfactor = 70);
-- Compression would cost more time than it saves.
ALTER TABLE redrive.claims ALTER COLUMN ids SET STORAGE EXTERNAL;

CREATE INDEX claims_leases ON redrive.claims (lease_until);

-- What a job has gathered on its way: after a failed attempt, a wait, a redrive, a change of its due time or a pause. A write that
-- ends or reschedules such a job locks this row.
CREATE TABLE redrive.progress (
  id           uuid PRIMARY KEY,
  -- The last settled lease, 0 before.
  epoch        bigint NOT NULL DEFAULT 0,
  began_at     bigint NOT NULL,
  next_run_at  bigint NOT NULL,
  started_at   bigint,
  wait_ms      bigint,
  run          integer NOT NULL DEFAULT 1,
  -- The charged attempts, without the one that runs.
  attempt      integer NOT NULL DEFAULT 0,
  last_status  integer,
  paused       boolean NOT NULL DEFAULT false,
  -- Whether a step added children. It is set in the transaction that adds them: a statement that ends the job waits for that
  -- transaction, and learns of the children here even where its snapshot is too old to show them.
  has_children boolean NOT NULL DEFAULT false,
  worker       text,
  last_error   text
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, fillfactor = 80);

-- Jobs that wait for something.
CREATE TABLE redrive.waiting (
  id              uuid PRIMARY KEY,
  -- When the wait began; for a job that waits for a slot, when it was due.
  due             bigint NOT NULL,
  awaits_failures bigint,
  lane            integer NOT NULL,
  awaits_branch   integer,
  -- 0 a signal, 1 children, 2 the end of a pause, 3 a free slot, 4 the first of several, which awaits_name lists as JSON.
  awaits          smallint NOT NULL,
  strict          boolean NOT NULL DEFAULT false,
  awaits_name     text COLLATE "C",
  partition       text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);

-- Finds the next job without strict order that waits for a slot.
CREATE INDEX waiting_for_slots ON redrive.waiting (partition, lane, due, id) WHERE awaits = 3 AND NOT strict;

-- Jobs that have ended. Values that are NULL here may be in `progress`, from an earlier attempt.
CREATE TABLE redrive.ended (
  id               uuid PRIMARY KEY,
  epoch            bigint NOT NULL,
  finished_at      bigint NOT NULL,
  started_at       bigint,
  attempt          integer NOT NULL,
  last_status      integer,
  -- 4 succeeded, 5 dead, 6 cancelled.
  state            smallint NOT NULL,
  cancel_requested boolean NOT NULL DEFAULT false,
  worker           text,
  reason           text,
  last_error       text,
  output           bytea
);

-- Finds the jobs whose retention is over.
CREATE INDEX ended_finished ON redrive.ended (state, finished_at, id);
-- Dead letters are few and listed often, newest first.
CREATE INDEX ended_dead ON redrive.ended (id) WHERE state = 5;

-- The children of jobs, except those that have succeeded.
CREATE TABLE redrive.children (
  parent   uuid NOT NULL,
  id       uuid NOT NULL,
  branch   integer NOT NULL,
  -- 0 live, 1 live and asked to stop, 2 dead or cancelled.
  stage    smallint NOT NULL DEFAULT 0,
  detached boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);

-- The id is in both, so that the end of a child reads one entry, however many children its parent has.
CREATE UNIQUE INDEX children_live ON redrive.children (parent, branch, id) WHERE stage < 2;
CREATE INDEX children_failed ON redrive.children (parent, branch, id) WHERE stage = 2;

-- The running jobs of each partition.
CREATE TABLE redrive.slots (
  partition text COLLATE "C" NOT NULL,
  id        uuid NOT NULL,
  PRIMARY KEY (partition, id)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);

-- The live jobs of each partition that run in strict order.
CREATE TABLE redrive.ordered (
  partition text COLLATE "C" NOT NULL,
  id        uuid NOT NULL,
  PRIMARY KEY (partition, id)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);

-- Each job as one row, for all reads. `lane`, `state` and `awaits` are codes; the columns after `detached` are for people.
-- OFFSET 0 makes the server look up each job in the other tables by their indexes, whatever number of jobs the planner expects. A
-- merge join would read these tables from their beginning, and so make each page of a list slower than the one before.
CREATE VIEW redrive.all_jobs AS
SELECT
  jobs.id, jobs.lane, positions.state, coalesce(progress.next_run_at, jobs.due) AS next_run_at,
  coalesce(progress.run, 1) AS run,
  coalesce(ended.attempt, coalesce(progress.attempt, 0) + (claims.claim IS NOT NULL)::integer) AS attempt,
  coalesce(
    ended.epoch,
    claims.claim << 16 | least(65535, (coalesce(progress.epoch, 0) & 65535) + claims.reclaims + 1),
    progress.epoch, 0
  ) AS epoch,
  jobs.created_at, coalesce(progress.began_at, jobs.due) AS began_at,
  CASE WHEN ended.id IS NOT NULL THEN ended.started_at ELSE coalesce(claims.started_at, progress.started_at) END AS started_at,
  claims.lease_until, ended.finished_at, progress.wait_ms, jobs.timeout_ms, jobs.lease_ms,
  coalesce(ended.cancel_requested, jobs.id = ANY (claims.cancels), false) AS cancel_requested,
  coalesce(ended.last_status, progress.last_status) AS last_status, jobs.tenant, jobs.policy,
  CASE WHEN ended.id IS NOT NULL THEN ended.worker ELSE coalesce(claims.worker, progress.worker) END AS worker,
  jobs.key, ended.reason, jobs.target, coalesce(ended.last_error, progress.last_error) AS last_error, jobs.metadata, jobs.payload,
  ended.output, jobs.parent, jobs.branch, waiting.awaits, waiting.awaits_name, waiting.awaits_branch, waiting.awaits_failures,
  coalesce(progress.paused, false) AS paused, jobs.partition, jobs.strict, jobs.detached,
  lanes.queue, lanes.kind, lanes.priority,
  (ARRAY['pending', 'retrying', 'running', 'waiting', 'succeeded', 'dead', 'cancelled'])[positions.state + 1] AS state_name,
  jobs.fingerprint
FROM redrive.jobs
LEFT JOIN redrive.lanes ON lanes.lane = jobs.lane
LEFT JOIN LATERAL (SELECT * FROM redrive.progress WHERE progress.id = jobs.id OFFSET 0) AS progress ON true
LEFT JOIN LATERAL (SELECT * FROM redrive.ended WHERE ended.id = jobs.id OFFSET 0) AS ended ON true
LEFT JOIN LATERAL (
  SELECT * FROM redrive.ready
  WHERE ready.lane = jobs.lane AND ready.due = coalesce(progress.next_run_at, jobs.due) AND ready.id = jobs.id
  OFFSET 0
) AS ready ON true
LEFT JOIN LATERAL (SELECT * FROM redrive.waiting WHERE waiting.id = jobs.id OFFSET 0) AS waiting ON true
CROSS JOIN LATERAL (
  SELECT coalesce(ended.state, ready.state, CASE WHEN waiting.id IS NULL THEN 2 ELSE 3 END::smallint) AS state
) AS positions
LEFT JOIN LATERAL (
  SELECT claims.* FROM redrive.claims
  WHERE ended.id IS NULL AND ready.id IS NULL AND waiting.id IS NULL
    AND jobs.id BETWEEN claims.first_id AND claims.last_id AND jobs.id = ANY (claims.ids)
  ORDER BY claims.claim DESC LIMIT 1
) AS claims ON true;

-- The jobs of earlier versions.
INSERT INTO redrive.jobs (
  id, due, created_at, timeout_ms, lease_ms, parent, lane, branch, detached, strict, tenant, policy, key, fingerprint, target, partition,
  metadata, payload
)
SELECT
  id, next_run_at, created_at, timeout_ms, lease_ms, parent, lane, branch, detached, strict, tenant, policy, key, fingerprint, subject,
  partition, metadata, payload
FROM redrive.old_jobs;

INSERT INTO redrive.progress (
  id, epoch, began_at, next_run_at, started_at, wait_ms, run, attempt, last_status, paused, has_children, worker, last_error
)
SELECT
  id, CASE WHEN state = 2 THEN epoch - 1 ELSE epoch END, began_at, next_run_at, started_at, wait_ms, run,
  CASE WHEN state = 2 THEN attempt - 1 ELSE attempt END, last_status, held, has_children, worker, last_error
FROM redrive.old_jobs
WHERE began_at <> next_run_at OR run > 1 OR wait_ms IS NOT NULL OR held OR has_children
  OR state < 4 AND NOT (
    epoch = 0 AND attempt = 0 AND last_error IS NULL
    OR state = 2 AND epoch = 1 AND attempt = 1 AND last_error IS NULL AND last_status IS NULL
  );

INSERT INTO redrive.ready (due, id, lease_ms, lane, state, progress, awaiting, strict, partition)
SELECT
  next_run_at, id, lease_ms, lane, state, EXISTS (SELECT FROM redrive.progress WHERE progress.id = old_jobs.id), awaits IS NOT NULL,
  strict, partition
FROM redrive.old_jobs WHERE state < 2;

INSERT INTO redrive.waiting (id, due, awaits_failures, lane, awaits_branch, awaits, strict, awaits_name, partition)
SELECT id, next_run_at, awaits_failures, lane, awaits_branch, awaits, strict, awaits_name, partition
FROM redrive.old_jobs WHERE awaits IS NOT NULL AND state IN (0, 1, 3);

-- Jobs that were claimed together have the same start and lease.
INSERT INTO redrive.claims (claim, part, lease_until, started_at, reclaims, whole, worker, cancels, ids)
SELECT
  claim, row_number() OVER (), lease_until, started_at, reclaims, false, worker,
  array_agg(id ORDER BY id) FILTER (WHERE cancel_requested), array_agg(id ORDER BY id)
FROM (
  SELECT
    old_jobs.*, old_jobs.epoch >> 16 AS claim, (old_jobs.epoch & 65535) - 1 - (coalesce(progress.epoch, 0) & 65535) AS reclaims
  FROM redrive.old_jobs LEFT JOIN redrive.progress USING (id)
  WHERE old_jobs.state = 2
) AS running
GROUP BY claim, lease_until, started_at, reclaims, worker;

INSERT INTO redrive.ended (
  id, epoch, finished_at, started_at, attempt, last_status, state, cancel_requested, worker, reason, last_error, output
)
SELECT
  id, epoch, finished_at, started_at, attempt, last_status, state, cancel_requested, worker, reason, last_error, output
FROM redrive.old_jobs WHERE state > 3;

INSERT INTO redrive.children (parent, id, branch, stage, detached)
SELECT
  parent, id, branch, CASE WHEN state > 4 THEN 2 WHEN cancel_requested THEN 1 ELSE 0 END, detached
FROM redrive.old_jobs WHERE parent IS NOT NULL AND state <> 4;

INSERT INTO redrive.slots (partition, id)
SELECT partition, id FROM redrive.old_jobs WHERE partition IS NOT NULL AND state = 2;

INSERT INTO redrive.ordered (partition, id)
SELECT partition, id FROM redrive.old_jobs WHERE strict AND partition IS NOT NULL AND state < 4;

SELECT setval('redrive.claim_numbers', 1 + coalesce(max(epoch) >> 16, 0)) FROM redrive.old_jobs;

-- Counted again, because the counts of earlier versions could be wrong.
TRUNCATE redrive.counts;
INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, count(*) FROM redrive.old_jobs GROUP BY lane, state;

DROP TABLE redrive.old_jobs;
ANALYZE redrive.jobs, redrive.ready, redrive.claims, redrive.progress, redrive.waiting, redrive.ended, redrive.children;

-- Notes that a lane is in use, and returns its number.
CREATE FUNCTION redrive.use_lane(of_queue text, of_kind text, of_priority smallint, now_ms bigint) RETURNS integer
LANGUAGE sql
-- Callers of redrive.enqueue need no right to change lanes.
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
  INSERT INTO redrive.lanes (queue, kind, priority, used_at) VALUES (of_queue, of_kind, of_priority, now_ms)
  ON CONFLICT (queue, kind, priority) DO UPDATE SET idle = false, used_at = greatest(lanes.used_at, excluded.used_at)
  RETURNING lane
$$;

-- As in 0004, for the new tables.
CREATE OR REPLACE FUNCTION redrive.enqueue(
  kind            text,
  payload         json DEFAULT 'null',
  queue           text DEFAULT 'default',
  priority        integer DEFAULT 5,
  run_at          timestamptz DEFAULT NULL,
  key             text DEFAULT NULL,
  policy          text DEFAULT 'default',
  tenant          text DEFAULT '',
  timeout         interval DEFAULT NULL,
  id              uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  now_ms    bigint := floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint;
  due       bigint := coalesce(floor(extract(epoch FROM enqueue.run_at) * 1000)::bigint, now_ms);
  bytes     bytea := convert_to(enqueue.payload::text, 'UTF8');
  job       uuid := coalesce(enqueue.id, redrive.new_id());
  version   integer;
  number    integer;
  print     bytea;
  added     uuid;
  holder    uuid;
  old_print bytea;
BEGIN
  PERFORM redrive.check_name('kind', enqueue.kind, 1, 128);
  PERFORM redrive.check_name('queue', enqueue.queue, 1, 128);
  PERFORM redrive.check_name('tenant', enqueue.tenant, 0, 128);
  PERFORM redrive.check_name('policy', enqueue.policy, 1, 128);
  IF enqueue.key IS NOT NULL THEN
    PERFORM redrive.check_name('key', enqueue.key, 1, 256);
  END IF;
  IF enqueue.priority NOT BETWEEN 0 AND 9 THEN
    RAISE invalid_parameter_value USING MESSAGE = format('priority must be from 0 to 9, is %s', enqueue.priority);
  END IF;
  IF octet_length(bytes) > 98304 THEN
    RAISE invalid_parameter_value USING MESSAGE =
      format('payload is %s bytes long, at most 98304 are allowed', octet_length(bytes));
  END IF;
  IF due > now_ms + 31536000000 THEN
    RAISE invalid_parameter_value USING MESSAGE = 'run_at must be at most one year ahead';
  END IF;

  SELECT (convert_from(records.value, 'UTF8')::json ->> 'version')::integer INTO version
  FROM redrive.records
  WHERE records.kind = 'policy.current' AND records.id = enqueue.policy AND records.value IS NOT NULL;
  IF version IS NULL AND enqueue.policy = 'default' THEN
    version := redrive.register_default_policy();
  END IF;
  IF version IS NULL THEN
    RAISE undefined_object USING
      MESSAGE = format('there is no policy named %s', quote_literal(enqueue.policy)),
      HINT = 'Register it first: POST /v1/policies.';
  END IF;

  SELECT lanes.lane INTO number FROM redrive.lanes
  WHERE lanes.queue = enqueue.queue AND lanes.kind = enqueue.kind AND lanes.priority = enqueue.priority
    AND NOT lanes.idle AND lanes.used_at > now_ms - 3600000;
  IF number IS NULL THEN
    number := redrive.use_lane(enqueue.queue, enqueue.kind, enqueue.priority::smallint, now_ms);
  END IF;

  IF enqueue.key IS NOT NULL THEN
    print := sha256(
      redrive.measured(enqueue.queue) || redrive.measured(enqueue.kind) || redrive.measured(enqueue.policy)
      || set_byte('\x00'::bytea, 0, enqueue.priority) || bytes
    );
  END IF;

  LOOP
    INSERT INTO redrive.jobs (id, lane, due, created_at, timeout_ms, tenant, policy, key, fingerprint, payload)
    VALUES (
      job, number, due, now_ms, ceil(extract(epoch FROM enqueue.timeout) * 1000)::bigint, enqueue.tenant,
      enqueue.policy || '@' || version, enqueue.key, print, bytes
    )
    ON CONFLICT DO NOTHING
    RETURNING jobs.id INTO added;
    IF added IS NOT NULL THEN
      INSERT INTO redrive.ready (lane, due, id) VALUES (number, due, added);
      INSERT INTO redrive.counts (lane, state, jobs) VALUES (number, 0, 1);
      PERFORM pg_notify('redrive', '');
      RETURN added;
    END IF;
    PERFORM FROM redrive.jobs WHERE jobs.id = job;
    IF FOUND THEN
      RETURN job;
    END IF;
    SELECT jobs.id, jobs.fingerprint INTO holder, old_print FROM redrive.jobs
    WHERE jobs.tenant = enqueue.tenant AND jobs.key = enqueue.key;
    IF FOUND AND old_print = print THEN
      RETURN holder;
    ELSIF FOUND THEN
      RAISE unique_violation USING
        MESSAGE = format('the key %s belongs to a different request, job %s', quote_literal(enqueue.key), holder);
    END IF;
    -- The job with the key was removed between the two statements: try again.
  END LOOP;
END
$$;
