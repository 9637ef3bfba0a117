-- Adds jobs unless their id or their tenant and key are taken: a repeated enqueue changes nothing. One that is due too far
-- ahead refuses them all. $1 the time, none for the server's; $2 how far ahead is too far; $3 the latest instant that any job
-- of the call is due at; $4 how many there are.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    $5::uuid[], $6::integer[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::text[],
    $13::text[], $14::bytea[], $15::text[], $16::text[], $17::bytea[], $18::uuid[], $19::integer[],
    $20::text[], $21::boolean[], $22::boolean[]
  ) AS given (
    id, lane, at, after, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject, metadata, payload, parent, branch,
    partition, strict, detached
  )
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), added AS (
  INSERT INTO redrive.jobs (
    id, lane, next_run_at, began_at, created_at, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject,
    metadata, payload, parent, branch, partition, strict, detached
  )
  SELECT
    id, lane, coalesce(at, now + after), coalesce(at, now + after), now, timeout_ms, lease_ms, tenant, policy, key,
    fingerprint, subject, metadata, payload, parent, branch, partition, strict, detached
  FROM given, clock
  WHERE NOT EXISTS (SELECT FROM late)
  ON CONFLICT DO NOTHING
  RETURNING id, lane
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 0, count(*) FROM added GROUP BY lane
)
SELECT EXISTS (SELECT FROM late) AS late, count(*) AS added, CASE WHEN count(*) < $4::bigint THEN array_agg(id) END AS ids
FROM added
