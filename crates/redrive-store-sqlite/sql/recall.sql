-- A job's steps from a place on, in their order.
SELECT place, name, kind, value FROM redrive_steps WHERE job = ?1 AND place >= ?2 ORDER BY place LIMIT ?3
