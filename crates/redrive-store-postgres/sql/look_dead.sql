-- The same among dead letters, which have an index of their own.
SELECT (array_agg(id ORDER BY id))[1] AS oldest, count(*) AS jobs FROM (
  SELECT id FROM redrive.jobs WHERE state = 5 AND id < $1 ORDER BY id DESC LIMIT $2
) AS next
