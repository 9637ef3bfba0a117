-- Leaves signals for jobs that have not ended, once under each id, in the order given. The lock keeps the rows from being
-- removed meanwhile and from nothing else.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[])
    WITH ORDINALITY AS given (job, id, name, value, turn)
), found AS MATERIALIZED (
  SELECT id, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR KEY SHARE
), kept AS (
  INSERT INTO redrive.signals (job, id, name, value)
  SELECT given.job, given.id, given.name, given.value FROM given JOIN found ON found.id = given.job
  WHERE found.state < 4
  ORDER BY given.turn
  ON CONFLICT DO NOTHING
)
SELECT id, state FROM found
