-- Adds jobs unless their id or their tenant and key are taken: a repeated enqueue changes nothing. One that is due too far
-- ahead refuses them all. $1 the time, none for the server's; $2 how far ahead is too far; $3 how many there are.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    $4::uuid[], $5::integer[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::text[],
    $12::text[], $13::bytea[], $14::text[], $15::text[], $16::bytea[]
  ) AS given (id, lane, at, after, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject, metadata, payload)
), late AS (
  SELECT FROM given, clock WHERE given.at > clock.now + $2::bigint LIMIT 1
), added AS (
  INSERT INTO redrive.jobs (
    id, lane, next_run_at, began_at, created_at, timeout_ms, lease_ms, tenant, policy, key, fingerprint, subject,
    metadata, payload
  )
  SELECT
    id, lane, coalesce(at, now + after), coalesce(at, now + after), now, timeout_ms, lease_ms, tenant, policy, key,
    fingerprint, subject, metadata, payload
  FROM given, clock
  WHERE NOT EXISTS (SELECT FROM late)
  ON CONFLICT DO NOTHING
  RETURNING id, lane
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 0, count(*) FROM added GROUP BY lane
)
SELECT EXISTS (SELECT FROM late) AS late, count(*) AS added, CASE WHEN count(*) < $3::bigint THEN array_agg(id) END AS ids
FROM added
