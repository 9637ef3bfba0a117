-- Renews leases that are still the holder's, and brings back a requested cancel. $1 the time, none for the server's.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
)
UPDATE redrive.jobs SET lease_until = clock.now + $4::bigint
FROM clock, unnest($2::uuid[], $3::bigint[]) AS given (id, epoch)
WHERE jobs.id = given.id AND jobs.epoch = given.epoch AND jobs.state::integer = 2
RETURNING jobs.id, jobs.epoch, jobs.cancel_requested
