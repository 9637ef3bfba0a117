-- Adds a job's own lease duration, its target (subject) and its last status. They come before the long columns, so that a list
-- need not read payloads to reach them. The table is rebuilt, because SQLite adds a column only at the end.
CREATE TABLE redrive_jobs_new (
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
  lease_ms         INTEGER,
  last_status      INTEGER,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  tenant           TEXT NOT NULL,
  policy           TEXT NOT NULL,
  worker           TEXT,
  key              TEXT,
  fingerprint      BLOB,
  reason           TEXT,
  subject          TEXT,
  last_error       TEXT,
  metadata         TEXT,
  payload          BLOB NOT NULL,
  output           BLOB
) STRICT;

INSERT INTO redrive_jobs_new (
  seq, id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
  wait_ms, timeout_ms, cancel_requested, tenant, policy, worker, key, fingerprint, reason, last_error, metadata, payload, output
)
SELECT
  seq, id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at,
  wait_ms, timeout_ms, cancel_requested, tenant, policy, worker, key, fingerprint, reason, last_error, metadata, payload, output
FROM redrive_jobs;

DROP TABLE redrive_jobs;
ALTER TABLE redrive_jobs_new RENAME TO redrive_jobs;

CREATE UNIQUE INDEX redrive_ids ON redrive_jobs (id);
CREATE INDEX redrive_due ON redrive_jobs (lane, next_run_at, id) WHERE state < 2;
CREATE INDEX redrive_leases ON redrive_jobs (lease_until) WHERE state = 2;
CREATE INDEX redrive_finished ON redrive_jobs (state, finished_at) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX redrive_keys ON redrive_jobs (tenant, key) WHERE key IS NOT NULL;

-- Dead letters are few and listed often, newest first.
CREATE INDEX redrive_dead ON redrive_jobs (id) WHERE state = 5;
