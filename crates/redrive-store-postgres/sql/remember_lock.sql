-- Locks jobs whose leases still hold, so that statements after it in the transaction may take their time; nothing is locked
-- when a child is due too far ahead. $1 the time, none for the server's; $2 how far ahead is too far; $3 the latest instant
-- that any child is due at.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), asked AS MATERIALIZED (
  SELECT DISTINCT id, epoch FROM unnest($4::uuid[], $5::bigint[]) AS asked (id, epoch)
), held AS MATERIALIZED (
  SELECT jobs.id, jobs.epoch FROM redrive.jobs JOIN asked ON asked.id = jobs.id AND asked.epoch = jobs.epoch
  WHERE jobs.state::integer = 2 AND NOT EXISTS (SELECT FROM late)
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
)
SELECT EXISTS (SELECT FROM late) AS late, held.id, held.epoch FROM clock LEFT JOIN held ON true
