-- The tables of redrive, in a schema of their own. Times are milliseconds since the Unix epoch by the server's clock.

-- A lane is a queue, a kind and a priority. Claims read lane by lane, so that a backlog in one lane does not slow down the others.
CREATE TABLE redrive.lanes (
  lane     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue    text COLLATE "C" NOT NULL,
  kind     text COLLATE "C" NOT NULL,
  priority smallint NOT NULL,
  UNIQUE (queue, kind, priority)
);

-- Wide columns come first and long ones last: there is no padding, and a claim or a list need not read the payload.
-- Every change of state writes a new row version, so vacuum must run often.
CREATE TABLE redrive.jobs (
  id               uuid PRIMARY KEY,
  next_run_at      bigint NOT NULL,
  epoch            bigint NOT NULL DEFAULT 0,
  created_at       bigint NOT NULL,
  began_at         bigint NOT NULL,
  started_at       bigint,
  lease_until      bigint,
  finished_at      bigint,
  wait_ms          bigint,
  timeout_ms       bigint,
  lease_ms         bigint,
  lane             integer NOT NULL,
  run              integer NOT NULL DEFAULT 1,
  attempt          integer NOT NULL DEFAULT 0,
  last_status      integer,
  state            smallint NOT NULL DEFAULT 0,
  cancel_requested boolean NOT NULL DEFAULT false,
  tenant           text COLLATE "C" NOT NULL,
  policy           text COLLATE "C" NOT NULL,
  worker           text,
  key              text COLLATE "C",
  fingerprint      bytea,
  reason           text,
  subject          text COLLATE "C",
  last_error       text,
  metadata         text,
  payload          bytea NOT NULL,
  output           bytea
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0.05
);

-- The index that claims read. It contains claimable jobs only, so that ended and running jobs cost a claim nothing.
CREATE INDEX jobs_due ON redrive.jobs (lane, next_run_at, id) WHERE state < 2;
CREATE INDEX jobs_leases ON redrive.jobs (lease_until, id) WHERE state = 2;
CREATE INDEX jobs_finished ON redrive.jobs (state, finished_at, id) WHERE state > 3;
CREATE UNIQUE INDEX jobs_keys ON redrive.jobs (tenant, key) WHERE key IS NOT NULL;
-- Dead letters are few and listed often, newest first.
CREATE INDEX jobs_dead ON redrive.jobs (id) WHERE state = 5;

-- The attempt log: one row for each settled epoch that is logged, so that an attempt has at most one outcome.
CREATE TABLE redrive.attempts (
  job         uuid NOT NULL,
  epoch       bigint NOT NULL,
  started_at  bigint NOT NULL,
  duration_ms bigint NOT NULL,
  wait_ms     bigint,
  next_run_at bigint,
  run         integer NOT NULL,
  attempt     integer NOT NULL,
  led_to      smallint NOT NULL,
  outcome     text NOT NULL,
  error       text,
  detail      text,
  worker      text,
  PRIMARY KEY (job, epoch)
);

-- Changes of the number of jobs by lane and state. Writes add rows and never change one, so that writers do not wait for
-- each other here. The sum of the rows is exact, and prune merges them from time to time.
CREATE TABLE redrive.counts (
  jobs  bigint NOT NULL,
  lane  integer NOT NULL,
  state smallint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);

-- A record without a value was removed; its version stays, so that versions only grow.
CREATE TABLE redrive.records (
  kind    text COLLATE "C" NOT NULL,
  id      text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  value   bytea,
  PRIMARY KEY (kind, id)
);
