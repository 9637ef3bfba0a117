-- Makes those of the jobs ($1) due that still wait for their turn. Neither their time nor their budget changes.
WITH locked AS MATERIALIZED (
  SELECT id, lane, state FROM redrive.jobs WHERE id = ANY ($1::uuid[]) AND awaits = 3 ORDER BY id FOR NO KEY UPDATE
), resumed AS (
  UPDATE redrive.jobs SET state = CASE WHEN jobs.state = 3 THEN 0 ELSE jobs.state END, awaits = NULL
  FROM locked
  WHERE jobs.id = locked.id
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT locked.lane, changes.state, changes.sign * count(*)
  FROM locked, (VALUES (3::smallint, -1), (0::smallint, 1)) AS changes (state, sign)
  WHERE locked.state = 3
  GROUP BY locked.lane, changes.state, changes.sign
)
SELECT id FROM locked
