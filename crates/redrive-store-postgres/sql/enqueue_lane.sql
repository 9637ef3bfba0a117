-- Gives a lane its number, once for all nodes, and notes if jobs with partitions come into it. $4 whether they do.
WITH added AS (
  INSERT INTO redrive.lanes (queue, kind, priority, partitioned) VALUES ($1, $2, $3, $4)
  ON CONFLICT (queue, kind, priority) DO UPDATE SET partitioned = true WHERE excluded.partitioned AND NOT lanes.partitioned
  RETURNING lane
)
SELECT lane FROM added
UNION ALL
SELECT lane FROM redrive.lanes WHERE queue = $1 AND kind = $2 AND priority = $3
LIMIT 1
