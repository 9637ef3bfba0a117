-- The lanes that a claim looks at, with what bounds them. $1, $2 queues and kinds, empty for all.
SELECT lanes.lane, lanes.queue, lanes.partitioned, quotas.value AS quota
FROM redrive.lanes
LEFT JOIN redrive.records AS quotas
  ON quotas.kind = 'quota' AND quotas.id = lanes.queue AND quotas.value IS NOT NULL
WHERE (cardinality($1::text[]) = 0 OR lanes.queue = ANY ($1::text[]))
  AND (cardinality($2::text[]) = 0 OR lanes.kind = ANY ($2::text[]))
  AND NOT EXISTS (
    SELECT FROM redrive.records
    WHERE records.kind = 'paused' AND records.id IN (lanes.queue, '*') AND records.value IS NOT NULL
  )
  AND NOT EXISTS (SELECT FROM redrive.records WHERE records.kind = 'sealed' AND records.value IS NOT NULL)
