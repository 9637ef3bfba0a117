-- What durable jobs add: whose child a job is and what it waits for, its steps and signals, and keys with one job at a time.
--
-- A node that does not know of these must not look after such jobs: it would prune children that a parent waits for, and
-- leave behind what a job waited for when it claims it. So it is refused from here on.
ALTER TABLE redrive.jobs
  ADD COLUMN parent          uuid,
  ADD COLUMN branch          integer,
  -- NULL nothing, 0 a signal, 1 children, 2 the end of a hold.
  ADD COLUMN awaits          smallint,
  ADD COLUMN awaits_name     text COLLATE "C",
  ADD COLUMN awaits_branch   integer,
  ADD COLUMN awaits_failures bigint,
  ADD COLUMN held            boolean NOT NULL DEFAULT false;

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
