-- The running jobs as ranges of row numbers. A claim writes one row here instead of one entry of an index for each job.
-- Every running job is in exactly one range. A range has no other jobs.
CREATE TABLE redrive_lease_ranges (
  first INTEGER PRIMARY KEY,
  last  INTEGER NOT NULL
) STRICT;

INSERT INTO redrive_lease_ranges (first, last) SELECT seq, seq FROM redrive_jobs WHERE state = 2;
DROP INDEX redrive_leases;

-- With these columns in the index, a claim finds the due jobs without reading their rows.
DROP INDEX redrive_due;
CREATE INDEX redrive_due ON redrive_jobs (lane, next_run_at, id, state, epoch, lease_ms, partition, strict) WHERE state < 2;
