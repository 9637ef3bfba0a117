-- Makes those of the awaiting jobs due for which what they wait for is there in this statement's snapshot, each once: a job
-- that waits for something else by the time of the write is left alone. The time it has waited moves its budget on; a hold
-- does not bring forward what is due later. A job of which an awaited child has not ended is due a millisecond before its last attempt
-- started, and so before that child. Whose turn it is, is not for this statement to say.
--
-- A fan-out of which too many children have failed must end its other children first. As long as a job has such fan-outs,
-- `ending` lists them and nothing is resumed.
-- Conditions are values and no EXISTS, which the planner would answer by reading whole tables.
parts AS MATERIALIZED (
  SELECT id, held, awaits AS code, awaits_name AS name, awaits_branch AS branch, awaits_failures AS failures
  FROM awaiting WHERE awaits <> 4
  UNION ALL
  SELECT
    awaiting.id, false, CASE WHEN part ->> 'signal' IS NULL THEN 1 ELSE 0 END, part ->> 'signal',
    -- Branches are unsigned where they come from, and keep their bits here.
    (part ->> 'branch')::bigint::bit(32)::integer, (part ->> 'failures')::bigint
  FROM awaiting CROSS JOIN LATERAL json_array_elements(CASE WHEN awaiting.awaits = 4 THEN awaiting.awaits_name::json END) AS part
), children AS MATERIALIZED (
  SELECT
    parts.id, parts.branch,
    coalesce((
      SELECT true FROM redrive.jobs
      WHERE jobs.parent = parts.id AND jobs.branch = parts.branch AND jobs.state < 4
      -- The other way round it would walk over the dead entries of all that were claimed before it comes to a live one.
      ORDER BY jobs.state DESC
      LIMIT 1
    ), false) AS live,
    coalesce((
      SELECT true FROM redrive.jobs
      WHERE jobs.parent = parts.id AND jobs.branch = parts.branch AND jobs.state > 4
      OFFSET parts.failures LIMIT 1
    ), false) AS failed
  FROM parts WHERE parts.code = 1
), ending AS MATERIALIZED (
  SELECT children.id, array_agg(children.branch) AS branches FROM children
  WHERE children.live AND children.failed AND coalesce((
    SELECT true FROM redrive.jobs
    WHERE jobs.parent = children.id AND jobs.branch = children.branch AND jobs.state < 4
      AND NOT jobs.detached AND NOT jobs.cancel_requested
    ORDER BY jobs.state DESC
    LIMIT 1
  ), false)
  GROUP BY children.id
), come AS MATERIALIZED (
  SELECT awaiting.id, awaiting.epoch, awaiting.awaits, bool_or(parts.ahead) AS ahead
  FROM awaiting JOIN (
    SELECT
      parts.id, false AS ahead,
      CASE parts.code
        WHEN 0 THEN coalesce((
          SELECT true FROM redrive.signals
          WHERE signals.job = parts.id AND signals.name = parts.name AND NOT signals.taken
          LIMIT 1
        ), false)
        ELSE parts.code = 2 AND NOT parts.held
      END AS come
    FROM parts WHERE parts.code <> 1
    UNION ALL
    SELECT children.id, children.live, children.failed OR NOT children.live FROM children
  ) AS parts USING (id)
  WHERE NOT EXISTS (SELECT FROM ending)
  GROUP BY awaiting.id, awaiting.epoch, awaiting.awaits
  HAVING bool_or(parts.come)
), locked AS MATERIALIZED (
  SELECT jobs.id, jobs.lane, jobs.state, come.ahead FROM redrive.jobs
  JOIN come ON come.id = jobs.id AND come.epoch = jobs.epoch AND come.awaits = jobs.awaits
  WHERE jobs.awaits <> 2 OR NOT jobs.held
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), resumed AS (
  UPDATE redrive.jobs SET
    state = CASE WHEN jobs.state = 3 THEN 0 ELSE jobs.state END,
    next_run_at = CASE
      WHEN jobs.awaits = 2 THEN greatest(jobs.next_run_at, clock.now)
      WHEN locked.ahead THEN least(clock.now, jobs.started_at - 1)
      ELSE clock.now
    END,
    began_at = jobs.began_at
      + CASE WHEN jobs.awaits = 2 THEN greatest(clock.now - jobs.next_run_at, 0) ELSE clock.now - jobs.next_run_at END,
    awaits = NULL
  FROM clock, locked
  WHERE jobs.id = locked.id
  RETURNING jobs.id, jobs.lane, CASE WHEN jobs.next_run_at < clock.now THEN jobs.next_run_at END AS early
), counted AS (
  INSERT INTO redrive.counts (lane, state, jobs)
  SELECT locked.lane, changes.state, changes.sign * count(*)
  FROM locked, (VALUES (3::smallint, -1), (0::smallint, 1)) AS changes (state, sign)
  WHERE locked.state = 3
  GROUP BY locked.lane, changes.state, changes.sign
)
SELECT
  awaiting.id, resumed.id IS NOT NULL AS resumed, awaiting.partition, awaiting.strict, awaiting.awaits = 3 AS turn,
  awaiting.state = 3 AND awaiting.next_run_at <= clock.now AS due,
  -- Whether it became claimable by it.
  resumed.id IS NOT NULL AND CASE awaiting.awaits
    WHEN 2 THEN awaiting.state = 3 AND awaiting.next_run_at <= clock.now
    ELSE awaiting.state = 3 OR awaiting.next_run_at > clock.now
  END AS adds,
  awaiting.parent IS NOT NULL AS is_child, ending.branches AS ending, resumed.lane, resumed.early, marks.tree
-- One row without a job says that there is none.
FROM clock CROSS JOIN marks LEFT JOIN awaiting ON true LEFT JOIN resumed USING (id) LEFT JOIN ending USING (id)
ORDER BY awaiting.id
