-- Gives a lane its number, once for all nodes.
WITH added AS (
  INSERT INTO redrive.lanes (queue, kind, priority) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING lane
)
SELECT lane FROM added
UNION ALL
SELECT lane FROM redrive.lanes WHERE queue = $1 AND kind = $2 AND priority = $3
LIMIT 1
