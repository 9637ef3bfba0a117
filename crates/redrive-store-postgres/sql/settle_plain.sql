-- Ends jobs well, with nothing more to say about them: most settlements are such. The epoch shuts out a worker whose lease
-- was reclaimed meanwhile. $1 the time, none for the server's.
-- The state is compared in a way that keeps the planner off the index of leases, whose dead entries it cannot see.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), settled AS (
  UPDATE redrive.jobs SET state = 4, finished_at = clock.now, lease_until = NULL, reason = NULL
  FROM clock, unnest($2::uuid[], $3::bigint[]) AS given (id, epoch)
  WHERE jobs.id = given.id AND jobs.epoch = given.epoch AND jobs.state::integer = 2
  RETURNING jobs.id, jobs.epoch, jobs.lane, jobs.partition, jobs.strict
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT settled.lane, changes.state, changes.sign * count(*)
  FROM settled, (VALUES (2::smallint, -1), (4::smallint, 1)) AS changes (state, sign)
  GROUP BY settled.lane, changes.state, changes.sign
)
SELECT id, epoch, 4::smallint AS state, lane, partition, strict, false AS due FROM settled
