-- Locks jobs whose leases still hold, so that statements after it in the transaction may take their time, and notes on those that
-- get children ($6 which) that they have some: a statement that ends such a job waits for this transaction, and then looks for the
-- children. A job whose end was requested gets none. Nothing is locked when a child is due too far ahead. $1 the time, none for
-- the server's; $2 how far ahead is too far; $3 the latest instant that any child is due at; $4, $5 the leases.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), late AS (
  SELECT FROM clock WHERE $3::bigint > clock.now + $2::bigint
), asked AS MATERIALIZED (
  SELECT id, epoch, bool_or(children) AS children
  FROM unnest($4::uuid[], $5::bigint[], $6::boolean[]) AS asked (id, epoch, children)
  GROUP BY id, epoch
), held AS MATERIALIZED (
  SELECT jobs.id, jobs.epoch, jobs.cancel_requested, asked.children AND NOT jobs.has_children AS becomes_parent
  FROM redrive.jobs JOIN asked ON asked.id = jobs.id AND asked.epoch = jobs.epoch
  WHERE jobs.state::integer = 2 AND NOT EXISTS (SELECT FROM late)
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), noted AS (
  UPDATE redrive.jobs SET has_children = true
  WHERE id = ANY (ARRAY(SELECT held.id FROM held WHERE held.becomes_parent AND NOT held.cancel_requested))
)
SELECT EXISTS (SELECT FROM late) AS late, held.id, held.epoch, held.cancel_requested FROM clock LEFT JOIN held ON true
