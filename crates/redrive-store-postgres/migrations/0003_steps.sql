-- What durable jobs and limits add: whose child a job is and what it waits for, its steps and signals, keys with one job at a
-- time, and partitions with the bounds of their queues.
--
-- A node that does not know of these must not look after such jobs: it would prune children that a parent waits for, and
-- leave behind what a job waited for when it claims it, beyond every bound. So it is refused from here on.
ALTER TABLE redrive.jobs
  ADD COLUMN parent          uuid,
  ADD COLUMN branch          integer,
  -- NULL nothing, 0 a signal, 1 children, 2 the end of a hold, 3 its turn.
  ADD COLUMN awaits          smallint,
  ADD COLUMN awaits_name     text COLLATE "C",
  ADD COLUMN awaits_branch   integer,
  ADD COLUMN awaits_failures bigint,
  ADD COLUMN held            boolean NOT NULL DEFAULT false,
  -- Jobs of a queue that share bounds or an order: the queue's name, a unit separator, the key.
  ADD COLUMN partition       text COLLATE "C",
  ADD COLUMN strict          boolean NOT NULL DEFAULT false;

-- Set before the first job with a partition comes into a lane, so that a claim that sees the job sees this too.
ALTER TABLE redrive.lanes ADD COLUMN partitioned boolean NOT NULL DEFAULT false;

-- Whether a fan-out has ended is one look at its live part, and one at its failures.
CREATE INDEX jobs_children ON redrive.jobs (parent, branch, state) WHERE parent IS NOT NULL;
-- The sweep's walk.
CREATE INDEX jobs_awaiting ON redrive.jobs (id) WHERE awaits IS NOT NULL;

CREATE TABLE redrive.steps (
  job   uuid NOT NULL,
  place bigint NOT NULL,
  kind  smallint NOT NULL,
  name  text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (job, place)
);

-- One that was taken stays, so that a repeat under its id leaves nothing.
CREATE TABLE redrive.signals (
  job   uuid NOT NULL,
  id    uuid NOT NULL,
  seq   bigint GENERATED ALWAYS AS IDENTITY,
  taken boolean NOT NULL DEFAULT false,
  name  text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (job, id)
);
-- The oldest that nobody took.
CREATE INDEX signals_untaken ON redrive.signals (job, name, seq) WHERE NOT taken;

-- Which job has a key, and until when whatever becomes of it. A key whose job is gone stays for as long as it was promised.
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

-- How many jobs of a partition run or could run; jobs without one are in none of these.
CREATE INDEX jobs_partitions ON redrive.jobs (partition, state, next_run_at) WHERE partition IS NOT NULL AND state < 3;
-- Which of those in strict order comes first.
CREATE INDEX jobs_strict ON redrive.jobs (partition, id) WHERE strict AND state < 4;
-- Whose turn is next among the others.
CREATE INDEX jobs_turns ON redrive.jobs (partition, lane, next_run_at, id) WHERE awaits = 3 AND NOT strict;

-- How many jobs of a queue run, without a look at the others.
CREATE INDEX counts_running ON redrive.counts (lane) WHERE state = 2;

-- Starts that a rate counts, under a queue or a partition: added with each claim and never changed, so that no row is fought
-- over. Prune removes old ones.
CREATE TABLE redrive.starts (
  at    bigint NOT NULL,
  jobs  bigint NOT NULL,
  scope text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000);
CREATE INDEX starts_scope ON redrive.starts (scope, at);
CREATE INDEX starts_at ON redrive.starts (at);
