-- The lanes to look at, highest priority first, each from where its live part begins. $1 the time, none for the server's;
-- $2, $3 queues and kinds, empty for all; $4 how many at most; $5 to $7 lanes with the place to begin at. A lane is bounded if
-- its queue has a quota or its jobs have partitions.
-- The limit travels as a column: the planner, which cannot look into it, then always takes the walk that starts fast.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), wanted AS MATERIALIZED (
  SELECT lanes.lane, lanes.priority, coalesce(floors.at, -9223372036854775808) AS from_at,
    coalesce(floors.id, '00000000-0000-0000-0000-000000000000') AS from_id, $4::bigint AS most,
    lanes.partitioned
      OR lanes.queue IN (SELECT records.id FROM redrive.records WHERE records.kind = 'quota' AND records.value IS NOT NULL)
      AS bounded
  FROM redrive.lanes
  LEFT JOIN unnest($5::integer[], $6::bigint[], $7::uuid[]) AS floors (lane, at, id) USING (lane)
  WHERE (cardinality($2::text[]) = 0 OR lanes.queue = ANY ($2::text[]))
    AND (cardinality($3::text[]) = 0 OR lanes.kind = ANY ($3::text[]))
    AND NOT EXISTS (
      SELECT FROM redrive.records
      WHERE records.kind = 'paused' AND records.id IN (lanes.queue, '*') AND records.value IS NOT NULL
    )
    AND NOT EXISTS (SELECT FROM redrive.records WHERE records.kind = 'sealed' AND records.value IS NOT NULL)
  ORDER BY lanes.priority DESC
),
