-- Adds the logs of jobs that were imported.
INSERT INTO redrive.attempts (
  job, epoch, run, attempt, started_at, duration_ms, outcome, error, detail, worker, led_to, wait_ms, next_run_at
)
SELECT * FROM unnest(
  $1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::text[],
  $10::text[], $11::smallint[], $12::bigint[], $13::bigint[]
)
