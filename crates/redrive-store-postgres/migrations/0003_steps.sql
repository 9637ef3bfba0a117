-- Durable jobs and limits: the parent of a job, the condition that it waits for, its steps and signals, unique keys, and
-- partitions, whose jobs share limits.
--
-- A node without support for these must not process such jobs: it would prune children that a parent waits for, claim jobs
-- without clearing their wait condition, and exceed every limit. So such nodes are refused from this version on.
ALTER TABLE redrive.jobs
  ADD COLUMN parent          uuid,
  ADD COLUMN branch          integer,
  -- NULL nothing, 0 a signal, 1 children, 2 the end of a pause, 3 a free slot.
  ADD COLUMN awaits          smallint,
  ADD COLUMN awaits_name     text COLLATE "C",
  ADD COLUMN awaits_branch   integer,
  ADD COLUMN awaits_failures bigint,
  ADD COLUMN held            boolean NOT NULL DEFAULT false,
  -- The partition of a job: the name of the queue, a unit separator, the partition key. Its jobs share limits or run in order.
  ADD COLUMN partition       text COLLATE "C",
  ADD COLUMN strict          boolean NOT NULL DEFAULT false;

-- Set before the first job with a partition is added to a lane, so that a claim that sees the job also sees this.
ALTER TABLE redrive.lanes ADD COLUMN partitioned boolean NOT NULL DEFAULT false;

-- Shows whether a fan-out has ended, with one lookup of its live children and one of its failed ones.
CREATE INDEX jobs_children ON redrive.jobs (parent, branch, state) WHERE parent IS NOT NULL;
-- The index that the sweep reads.
CREATE INDEX jobs_awaiting ON redrive.jobs (id) WHERE awaits IS NOT NULL;

CREATE TABLE redrive.steps (
  job   uuid NOT NULL,
  place bigint NOT NULL,
  kind  smallint NOT NULL,
  name  text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (job, place)
);

-- A taken signal stays, so that a repeated signal is recognised by its id.
CREATE TABLE redrive.signals (
  job   uuid NOT NULL,
  id    uuid NOT NULL,
  seq   bigint GENERATED ALWAYS AS IDENTITY,
  taken boolean NOT NULL DEFAULT false,
  name  text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (job, id)
);
-- Finds the oldest signal that no step has taken.
CREATE INDEX signals_untaken ON redrive.signals (job, name, seq) WHERE NOT taken;

-- The job that holds a unique key, and the time until which the key is reserved. A key whose job was removed stays until then.
CREATE TABLE redrive.uniques (
  job    uuid NOT NULL,
  until  bigint,
  gone   boolean NOT NULL DEFAULT false,
  tenant text COLLATE "C" NOT NULL,
  kind   text COLLATE "C" NOT NULL,
  key    text COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, kind, key)
);
CREATE INDEX uniques_job ON redrive.uniques (job);
CREATE INDEX uniques_gone ON redrive.uniques (until) WHERE gone;

-- Counts the running and claimable jobs of a partition. Jobs without a partition are in none of these indexes.
CREATE INDEX jobs_partitions ON redrive.jobs (partition, state, next_run_at) WHERE partition IS NOT NULL AND state < 3;
-- Finds the first job in strict order.
CREATE INDEX jobs_strict ON redrive.jobs (partition, id) WHERE strict AND state < 4;
-- Finds the next job without strict order that waits for a slot.
CREATE INDEX jobs_turns ON redrive.jobs (partition, lane, next_run_at, id) WHERE awaits = 3 AND NOT strict;

-- Counts the running jobs of a queue without reading the other counts.
CREATE INDEX counts_running ON redrive.counts (lane) WHERE state = 2;

-- Starts that count for a rate limit, of a queue or a partition. Claims add rows and never change one, so that they do not wait
-- for each other. Prune removes old rows.
CREATE TABLE redrive.starts (
  at    bigint NOT NULL,
  jobs  bigint NOT NULL,
  scope text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);
CREATE INDEX starts_scope ON redrive.starts (scope, at);
CREATE INDEX starts_at ON redrive.starts (at);
