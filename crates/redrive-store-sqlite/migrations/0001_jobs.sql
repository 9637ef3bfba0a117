-- The tables of redrive. Their names have a prefix, so that an application can have its own tables in the same file.

-- A lane is a queue, a kind and a priority. Claims read lane by lane, so that a backlog in one lane does not slow down the others.
CREATE TABLE redrive_lanes (
  lane     INTEGER PRIMARY KEY,
  queue    TEXT NOT NULL,
  kind     TEXT NOT NULL,
  priority INTEGER NOT NULL,
  UNIQUE (queue, kind, priority)
) STRICT;

-- seq is the row number in the file. Leased rows are settled by it, which costs one lookup in one B-tree.
CREATE TABLE redrive_jobs (
  seq              INTEGER PRIMARY KEY,
  id               BLOB NOT NULL CHECK (length(id) = 16),
  lane             INTEGER NOT NULL,
  state            INTEGER NOT NULL,
  next_run_at      INTEGER NOT NULL,
  run              INTEGER NOT NULL DEFAULT 1,
  attempt          INTEGER NOT NULL DEFAULT 0,
  epoch            INTEGER NOT NULL DEFAULT 0,
  created_at       INTEGER NOT NULL,
  began_at         INTEGER NOT NULL,
  started_at       INTEGER,
  lease_until      INTEGER,
  finished_at      INTEGER,
  wait_ms          INTEGER,
  timeout_ms       INTEGER,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  tenant           TEXT NOT NULL,
  policy           TEXT NOT NULL,
  worker           TEXT,
  key              TEXT,
  fingerprint      BLOB,
  reason           TEXT,
  last_error       TEXT,
  metadata         TEXT,
  payload          BLOB NOT NULL,
  output           BLOB
) STRICT;

CREATE UNIQUE INDEX redrive_ids ON redrive_jobs (id);

-- The index that claims read. It contains claimable jobs only, so that ended and running jobs cost a claim nothing.
CREATE INDEX redrive_due ON redrive_jobs (lane, next_run_at, id) WHERE state < 2;
CREATE INDEX redrive_leases ON redrive_jobs (lease_until) WHERE state = 2;
CREATE INDEX redrive_finished ON redrive_jobs (state, finished_at) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX redrive_keys ON redrive_jobs (tenant, key) WHERE key IS NOT NULL;

-- The attempt log: one row for each settled epoch that is logged, so that an attempt has at most one outcome.
CREATE TABLE redrive_attempts (
  job         BLOB NOT NULL,
  epoch       INTEGER NOT NULL,
  run         INTEGER NOT NULL,
  attempt     INTEGER NOT NULL,
  started_at  INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  outcome     TEXT NOT NULL,
  error       TEXT,
  detail      TEXT,
  worker      TEXT,
  led_to      INTEGER NOT NULL,
  wait_ms     INTEGER,
  next_run_at INTEGER,
  PRIMARY KEY (job, epoch)
) STRICT, WITHOUT ROWID;

-- The exact number of jobs by lane and state. Each transaction writes it once, so that statistics need no scan.
CREATE TABLE redrive_counts (
  lane  INTEGER NOT NULL,
  state INTEGER NOT NULL,
  jobs  INTEGER NOT NULL,
  PRIMARY KEY (lane, state)
) STRICT, WITHOUT ROWID;

-- A record without a value was removed; its version stays, so that versions only grow.
CREATE TABLE redrive_records (
  kind    TEXT NOT NULL,
  id      TEXT NOT NULL,
  version INTEGER NOT NULL,
  value   BLOB,
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
