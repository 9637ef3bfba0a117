-- What durable jobs add. A parent's children, found by how far they have come.
ALTER TABLE redrive_jobs ADD COLUMN parent BLOB;
ALTER TABLE redrive_jobs ADD COLUMN branch INTEGER;
-- What a job waits for: 0 a signal by name, 1 children of a branch, 2 the end of a hold, 3 its turn.
ALTER TABLE redrive_jobs ADD COLUMN awaits INTEGER;
ALTER TABLE redrive_jobs ADD COLUMN awaits_name TEXT;
ALTER TABLE redrive_jobs ADD COLUMN awaits_branch INTEGER;
ALTER TABLE redrive_jobs ADD COLUMN awaits_failures INTEGER;
ALTER TABLE redrive_jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0;

CREATE INDEX redrive_children ON redrive_jobs (parent, branch, state) WHERE parent IS NOT NULL;
CREATE INDEX redrive_awaiting ON redrive_jobs (id) WHERE awaits IS NOT NULL;

-- What a job has done so far: each place once.
CREATE TABLE redrive_steps (
  job   BLOB NOT NULL,
  place INTEGER NOT NULL,
  kind  INTEGER NOT NULL,
  name  TEXT NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (job, place)
) STRICT, WITHOUT ROWID;

-- Signals in the order in which they came. Those that were taken stay, so that a repeat is known as one.
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

-- Who has a unique key, and until when whatever becomes of the job.
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

-- Jobs of a queue that share bounds or an order: the queue's name, a unit separator, the key.
ALTER TABLE redrive_jobs ADD COLUMN partition TEXT;
ALTER TABLE redrive_jobs ADD COLUMN strict INTEGER NOT NULL DEFAULT 0;

CREATE INDEX redrive_partitions ON redrive_jobs (partition, state, next_run_at) WHERE partition IS NOT NULL;
CREATE INDEX redrive_strict ON redrive_jobs (partition, id) WHERE strict = 1 AND state < 4;
CREATE INDEX redrive_turns ON redrive_jobs (partition, lane, next_run_at, id) WHERE awaits = 3 AND strict = 0;

-- Starts that a rate counts: added with each claim and never changed, so that no row is ever fought over.
CREATE TABLE redrive_starts (
  scope TEXT NOT NULL,
  at    INTEGER NOT NULL,
  jobs  INTEGER NOT NULL
) STRICT;

CREATE INDEX redrive_starts_by_scope ON redrive_starts (scope, at);
