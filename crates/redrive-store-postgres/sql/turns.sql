-- What decides whose turn it is in partitions ($2), in one snapshot: how many run and how many without an order could at once, neither counted
-- beyond what matters ($3), which job in strict order comes first, and who waits, in order, no more than may go on ($4). $1 the
-- time, none for the server's. Must begin when the locks are held: counts from before them are old.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), partitions AS MATERIALIZED (
  SELECT scope, split_part(scope, E'\x1f', 1) AS queue, most, next
  FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS partitions (scope, most, next)
)
SELECT
  partitions.scope, clock.now,
  (
    SELECT count(*) FROM (
      SELECT FROM redrive.jobs WHERE jobs.partition = partitions.scope AND jobs.state = 2 LIMIT partitions.most
    ) AS running
  ) AS running,
  (
    SELECT count(*) FROM (
      SELECT FROM redrive.jobs
      WHERE jobs.partition = partitions.scope AND jobs.state IN (0, 1) AND jobs.next_run_at <= clock.now
        AND NOT jobs.strict
      LIMIT partitions.most
    ) AS claimable
  ) AS claimable,
  first.id AS first, coalesce(first.turn, false) AS first_waits, coalesce(first.due, false) AS first_due,
  waiting.ids, waiting.due
FROM clock CROSS JOIN partitions
LEFT JOIN LATERAL (
  SELECT jobs.id, coalesce(jobs.awaits = 3, false) AS turn, jobs.next_run_at <= clock.now AS due FROM redrive.jobs
  WHERE jobs.partition = partitions.scope AND jobs.strict AND jobs.state < 4
  ORDER BY jobs.id LIMIT 1
) AS first ON true
CROSS JOIN LATERAL (
  SELECT array_agg(waiting.id) AS ids, array_agg(waiting.due) AS due
  FROM (
    SELECT each.id, each.due FROM redrive.lanes
    CROSS JOIN LATERAL (
      SELECT jobs.id, jobs.next_run_at, jobs.next_run_at <= clock.now AS due FROM redrive.jobs
      WHERE jobs.partition = partitions.scope AND jobs.lane = lanes.lane AND jobs.awaits = 3 AND NOT jobs.strict
      ORDER BY jobs.next_run_at, jobs.id
      LIMIT partitions.next
    ) AS each
    WHERE lanes.queue = partitions.queue
    ORDER BY lanes.priority DESC, each.next_run_at, each.id
    LIMIT partitions.next
  ) AS waiting
) AS waiting
