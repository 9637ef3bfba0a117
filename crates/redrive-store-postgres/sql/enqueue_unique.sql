-- Adds jobs with unique keys, each by its rule: of all that ask for a key at once one gets it. What was decided by a holder
-- that was another by the time of the write is not done and answered with nothing: look again. $1 the time, none for the
-- server's; $2 how far ahead is too far; $3 the latest instant that any job of the call is due at. Rules: 0 while the holder
-- lives, 1 for a time, 2 replace it unless it has started.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    $4::uuid[], $5::integer[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::text[],
    $12::text[], $13::bytea[], $14::text[], $15::text[], $16::bytea[], $17::uuid[], $18::integer[], $19::text[],
    $20::boolean[], $21::boolean[], $22::text[], $23::text[], $24::smallint[], $25::bigint[]
  ) WITH ORDINALITY AS given (
    id, lane, at, after, timeout_ms, lease_ms, tenant, policy, no_key, no_fingerprint, subject, metadata, payload, parent,
    branch, partition, strict, detached, kind, key, rule, for_ms, place
  )
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), seen AS MATERIALIZED (
  -- The holder and its job stand in one snapshot: a key that is seen with its job missing has outlived it.
  SELECT
    given.place, given.tenant, given.kind, given.key, uniques.job AS holder, same.id IS NOT NULL AS known,
    CASE given.rule
      WHEN 0 THEN coalesce(held.state < 4, false)
      WHEN 1 THEN coalesce(uniques.until > clock.now, held.state < 4, false)
      ELSE false
    END AS blocked,
    coalesce(given.rule = 2 AND held.state = 0 AND held.epoch = 0, false) AS replaceable
  FROM clock, given
  LEFT JOIN redrive.jobs AS same ON same.id = given.id
  LEFT JOIN redrive.uniques
    ON uniques.tenant = given.tenant AND uniques.kind = given.kind AND uniques.key = given.key
  LEFT JOIN redrive.jobs AS held ON held.id = uniques.job
), taken AS (
  INSERT INTO redrive.uniques (tenant, kind, key, job, until)
  SELECT given.tenant, given.kind, given.key, given.id, clock.now + given.for_ms
  FROM clock, seen JOIN given USING (place)
  WHERE NOT (seen.known OR seen.blocked OR seen.replaceable) AND NOT EXISTS (SELECT FROM late)
  ORDER BY given.tenant, given.kind, given.key
  ON CONFLICT (tenant, kind, key) DO UPDATE SET job = excluded.job, until = excluded.until, gone = false
  WHERE uniques.job = (
    SELECT seen.holder FROM seen
    WHERE seen.tenant = excluded.tenant AND seen.kind = excluded.kind AND seen.key = excluded.key
  )
  RETURNING job
), added AS (
  INSERT INTO redrive.jobs (
    id, lane, next_run_at, began_at, created_at, timeout_ms, lease_ms, tenant, policy, subject, metadata, payload, parent,
    branch, partition, strict, detached
  )
  SELECT
    id, lane, coalesce(at, now + after), coalesce(at, now + after), now, timeout_ms, lease_ms, tenant, policy, subject,
    metadata, payload, parent, branch, partition, strict, detached
  FROM clock, given JOIN taken ON taken.job = given.id
  ON CONFLICT DO NOTHING
  RETURNING id, lane
), replaceable AS MATERIALIZED (
  SELECT jobs.id, seen.place FROM redrive.jobs JOIN seen ON seen.holder = jobs.id
  WHERE seen.replaceable AND NOT seen.known AND jobs.state = 0 AND jobs.epoch = 0 AND NOT EXISTS (SELECT FROM late)
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), replaced AS (
  UPDATE redrive.jobs SET
    policy = given.policy, payload = given.payload, subject = given.subject, metadata = given.metadata,
    timeout_ms = given.timeout_ms, lease_ms = given.lease_ms,
    next_run_at = coalesce(given.at, clock.now + given.after), began_at = coalesce(given.at, clock.now + given.after)
  FROM clock, replaceable JOIN given USING (place)
  WHERE jobs.id = replaceable.id
  RETURNING given.place
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 0, count(*) FROM added GROUP BY lane
)
SELECT
  EXISTS (SELECT FROM late) AS late, given.place, added.id AS created,
  CASE WHEN seen.known THEN given.id WHEN seen.blocked THEN seen.holder END AS existing,
  CASE WHEN replaced.place IS NOT NULL THEN seen.holder END AS replaced
FROM given
JOIN seen USING (place)
LEFT JOIN added ON added.id = given.id
LEFT JOIN replaced USING (place)
