-- What decides about claims, in one snapshot: the quotas of queues ($2), how many of the queues with one ($3) and of
-- partitions ($5) run, what has started there within spans ($4, $6; none where nothing counts starts), and which job in strict
-- order comes first. $1 the time, none for the server's. Must begin when the locks are held: counts from before them are old.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), queues AS MATERIALIZED (
  SELECT * FROM unnest($3::text[], $4::bigint[]) AS queues (scope, span)
), partitions AS MATERIALIZED (
  SELECT * FROM unnest($5::text[], $6::bigint[]) AS partitions (scope, span)
)
SELECT 0 AS what, NULL AS scope, clock.now AS number, NULL::bigint AS at, NULL::uuid AS id, NULL::bytea AS value FROM clock
UNION ALL
SELECT 1, records.id, NULL, NULL, NULL, records.value FROM redrive.records
WHERE records.kind = 'quota' AND records.id = ANY ($2::text[]) AND records.value IS NOT NULL
UNION ALL
SELECT 2, queues.scope, coalesce((
  SELECT sum(counts.jobs)::bigint FROM redrive.counts
  WHERE counts.state = 2 AND counts.lane = ANY (ARRAY(SELECT lanes.lane FROM redrive.lanes WHERE lanes.queue = queues.scope))
), 0), NULL, NULL, NULL
FROM queues
UNION ALL
SELECT 2, partitions.scope, (
  SELECT count(*) FROM redrive.jobs WHERE jobs.partition = partitions.scope AND jobs.state = 2
), NULL, NULL, NULL
FROM partitions
UNION ALL
SELECT 3, scopes.scope, started.jobs, started.at, NULL, NULL
FROM (SELECT * FROM queues UNION ALL SELECT * FROM partitions) AS scopes, clock
-- OFFSET keeps it a look at each scope's own, whatever the planner thinks of how many there are.
CROSS JOIN LATERAL (
  SELECT starts.at, sum(starts.jobs)::bigint AS jobs FROM redrive.starts
  WHERE starts.scope = scopes.scope AND starts.at > clock.now - scopes.span
  GROUP BY starts.at
  OFFSET 0
) AS started
WHERE scopes.span IS NOT NULL
UNION ALL
SELECT 4, partitions.scope, NULL, NULL, (
  SELECT jobs.id FROM redrive.jobs
  WHERE jobs.partition = partitions.scope AND jobs.strict AND jobs.state < 4
  ORDER BY jobs.id LIMIT 1
), NULL
FROM partitions
