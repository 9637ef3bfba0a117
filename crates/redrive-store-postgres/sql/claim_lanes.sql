-- The lanes to look at with how many each may give, paused ones left out. $1 the time, none for the server's; $2, $3 lanes and
-- numbers; $4 how many at most. Looks from the very beginning: a turn comes back at its old place.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), wanted AS MATERIALIZED (
  SELECT lanes.lane, lanes.priority, -9223372036854775808 AS from_at,
    '00000000-0000-0000-0000-000000000000'::uuid AS from_id, asked.most
  FROM unnest($2::integer[], $3::bigint[]) AS asked (lane, most) JOIN redrive.lanes USING (lane)
  WHERE NOT EXISTS (
    SELECT FROM redrive.records
    WHERE records.kind = 'paused' AND records.id IN (lanes.queue, '*') AND records.value IS NOT NULL
  )
  AND NOT EXISTS (SELECT FROM redrive.records WHERE records.kind = 'sealed' AND records.value IS NOT NULL)
),
