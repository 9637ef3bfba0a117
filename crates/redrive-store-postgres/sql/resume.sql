-- Makes those of the awaiting jobs due for which what they wait for is there in this statement's snapshot, each once: a job
-- that waits for something else by the time of the write is left alone. The time it has waited moves its budget on; a hold
-- does not bring forward what is due later. Whose turn it is, is not for this statement to say.
-- Conditions are values and no EXISTS, which the planner would answer by reading whole tables.
come AS MATERIALIZED (
  SELECT id, epoch, awaits FROM awaiting
  WHERE CASE awaits
    WHEN 0 THEN coalesce((
      SELECT true FROM redrive.signals
      WHERE signals.job = awaiting.id AND signals.name = awaiting.awaits_name AND NOT signals.taken
      LIMIT 1
    ), false)
    WHEN 1 THEN coalesce((
      SELECT false FROM redrive.jobs
      WHERE jobs.parent = awaiting.id AND jobs.branch = awaiting.awaits_branch AND jobs.state < 4
      -- The other way round it would walk over the dead entries of all that were claimed before it comes to a live one.
      ORDER BY jobs.state DESC
      LIMIT 1
    ), true) OR coalesce((
      SELECT true FROM redrive.jobs
      WHERE jobs.parent = awaiting.id AND jobs.branch = awaiting.awaits_branch AND jobs.state > 4
      OFFSET awaiting.awaits_failures LIMIT 1
    ), false)
    WHEN 2 THEN NOT held
    ELSE false
  END
), locked AS MATERIALIZED (
  SELECT jobs.id, jobs.lane, jobs.state FROM redrive.jobs
  JOIN come ON come.id = jobs.id AND come.epoch = jobs.epoch AND come.awaits = jobs.awaits
  WHERE jobs.awaits <> 2 OR NOT jobs.held
  ORDER BY jobs.id
  FOR NO KEY UPDATE OF jobs
), resumed AS (
  UPDATE redrive.jobs SET
    state = CASE WHEN jobs.state = 3 THEN 0 ELSE jobs.state END,
    next_run_at = CASE WHEN jobs.awaits = 2 THEN greatest(jobs.next_run_at, clock.now) ELSE clock.now END,
    began_at = jobs.began_at
      + CASE WHEN jobs.awaits = 2 THEN greatest(clock.now - jobs.next_run_at, 0) ELSE clock.now - jobs.next_run_at END,
    awaits = NULL
  FROM clock, locked
  WHERE jobs.id = locked.id
  RETURNING jobs.id
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
  END AS adds
FROM clock CROSS JOIN awaiting LEFT JOIN resumed USING (id)
ORDER BY awaiting.id
