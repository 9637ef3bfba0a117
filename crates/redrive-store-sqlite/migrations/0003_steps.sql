-- Durable jobs and limits. The children of a parent are found by fan-out and state.
ALTER TABLE redrive_jobs ADD COLUMN parent BLOB;
ALTER TABLE redrive_jobs ADD COLUMN branch INTEGER;
-- What a job waits for: 0 a signal by name, 1 the children of a fan-out, 2 the end of a pause, 3 a free slot.
ALTER TABLE redrive_jobs ADD COLUMN awaits INTEGER;
ALTER TABLE redrive_jobs ADD COLUMN awaits_name TEXT;
ALTER TABLE redrive_jobs ADD COLUMN awaits_branch INTEGER;
ALTER TABLE redrive_jobs ADD COLUMN awaits_failures INTEGER;
ALTER TABLE redrive_jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0;

CREATE INDEX redrive_children ON redrive_jobs (parent, branch, state) WHERE parent IS NOT NULL;
CREATE INDEX redrive_awaiting ON redrive_jobs (id) WHERE awaits IS NOT NULL;

-- The steps of a job: one row for each place.
CREATE TABLE redrive_steps (
  job   BLOB NOT NULL,
  place INTEGER NOT NULL,
  kind  INTEGER NOT NULL,
  name  TEXT NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (job, place)
) STRICT, WITHOUT ROWID;

-- Signals in the order of their arrival. Taken signals stay, so that a repeated signal is recognised.
CREATE TABLE redrive_signals (
  seq   INTEGER PRIMARY KEY,
  job   BLOB NOT NULL,
  id    BLOB NOT NULL,
  name  TEXT NOT NULL,
  value BLOB NOT NULL,
  taken INTEGER NOT NULL DEFAULT 0,
  UNIQUE (job, id)
) STRICT;

CREATE INDEX redrive_untaken ON redrive_signals (job, name, seq) WHERE taken = 0;

-- The job that holds a unique key, and the time until which the key is reserved even if the job ends or is deleted.
CREATE TABLE redrive_uniques (
  tenant TEXT NOT NULL,
  kind   TEXT NOT NULL,
  key    TEXT NOT NULL,
  job    BLOB NOT NULL,
  until  INTEGER,
  PRIMARY KEY (tenant, kind, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX redrive_unique_jobs ON redrive_uniques (job);
CREATE INDEX redrive_unique_until ON redrive_uniques (until) WHERE until IS NOT NULL;

-- The partition of a job: the name of the queue, a unit separator, the partition key. The jobs of a partition share limits or run in
-- order.
ALTER TABLE redrive_jobs ADD COLUMN partition TEXT;
ALTER TABLE redrive_jobs ADD COLUMN strict INTEGER NOT NULL DEFAULT 0;

CREATE INDEX redrive_partitions ON redrive_jobs (partition, state, next_run_at) WHERE partition IS NOT NULL;
CREATE INDEX redrive_strict ON redrive_jobs (partition, id) WHERE strict = 1 AND state < 4;
CREATE INDEX redrive_turns ON redrive_jobs (partition, lane, next_run_at, id) WHERE awaits = 3 AND strict = 0;

-- Starts that count for a rate limit. A claim adds rows and never changes one.
CREATE TABLE redrive_starts (
  scope TEXT NOT NULL,
  at    INTEGER NOT NULL,
  jobs  INTEGER NOT NULL
) STRICT;

CREATE INDEX redrive_starts_by_scope ON redrive_starts (scope, at);
