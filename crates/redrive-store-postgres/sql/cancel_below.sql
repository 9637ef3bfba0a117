-- The next children to end below the marked jobs of a tree, locked in the order of their ids. Marks go when all children of
-- their jobs are among them. $1 the time, none for the server's; $2 the tree; $3 how many marks and children at most. `more` says
-- whether the tree may have work left.
--
-- No child is missed. The mark was committed after its job was locked and before this statement's snapshot. A step that
-- brings children locks the job too: either it had committed by then, and its children are in the snapshot, or it comes later,
-- and finds the job ended or its end requested and adds nothing. A mark is never changed, so that one of a later end of
-- the same job stays. It counts only while the job is ended or asked to end: one that was redriven keeps its children.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), seen AS MATERIALIZED (
  SELECT mark FROM redrive.closing WHERE tree = $2::bigint ORDER BY mark LIMIT $3::bigint
), taken AS MATERIALIZED (
  -- A sweep may be at work on the same tree: whoever waits here finds these marks gone.
  SELECT mark, job FROM redrive.closing
  WHERE tree = $2::bigint AND mark = ANY (ARRAY(SELECT mark FROM seen))
  ORDER BY mark
  FOR UPDATE
), ending AS MATERIALIZED (
  SELECT DISTINCT job, $3::bigint AS most FROM taken
  -- A value and no join. A job that is gone had ended, and will not be redriven.
  WHERE coalesce((SELECT jobs.state > 4 OR jobs.cancel_requested FROM redrive.jobs WHERE jobs.id = taken.job), true)
), below AS MATERIALIZED (
  SELECT children.id FROM ending
  -- A child whose end was requested before is left out: whoever did that ends what is below it.
  CROSS JOIN LATERAL (
    SELECT jobs.id FROM redrive.jobs
    WHERE jobs.parent = ending.job AND jobs.state < 4 AND NOT jobs.detached AND NOT jobs.cancel_requested
    LIMIT ending.most
  ) AS children
  LIMIT $3::bigint
), found AS MATERIALIZED (
  SELECT id, lane, state, next_run_at, partition, strict, cancel_requested, has_children FROM redrive.jobs
  WHERE id = ANY (ARRAY(SELECT id FROM below)) AND state < 4 AND NOT cancel_requested
  ORDER BY id
  FOR NO KEY UPDATE
), worked_off AS (
  DELETE FROM redrive.closing
  WHERE tree = $2::bigint AND mark = ANY (ARRAY(SELECT mark FROM taken)) AND (SELECT count(*) FROM below) < $3::bigint
), rest AS (
  SELECT
    (SELECT count(*) FROM below) >= $3::bigint
    OR (SELECT count(*) FROM seen) >= $3::bigint
    OR (SELECT count(*) FROM taken) < (SELECT count(*) FROM seen) AS more
),
