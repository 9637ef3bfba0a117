-- Makes room for jobs that are imported again, with all that belongs to them.
WITH gone AS (
  DELETE FROM redrive.jobs WHERE id = ANY ($1::uuid[]) RETURNING lane, state
), log AS (
  DELETE FROM redrive.attempts WHERE job = ANY ($1::uuid[])
), steps AS (
  DELETE FROM redrive.steps WHERE job = ANY ($1::uuid[])
), signals AS (
  DELETE FROM redrive.signals WHERE job = ANY ($1::uuid[])
), released AS (
  DELETE FROM redrive.uniques WHERE job = ANY ($1::uuid[])
)
INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, state, -count(*) FROM gone GROUP BY lane, state
