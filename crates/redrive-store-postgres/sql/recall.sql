-- A job's steps in their order, from a place on.
SELECT place, kind, name, value FROM redrive.steps WHERE job = $1 AND place >= $2
ORDER BY place LIMIT $3
