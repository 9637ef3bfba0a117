-- The oldest of the next $2 ids before $1, newest first, and how many there are: the bound of a look. It reads the index of
-- ids alone.
SELECT (array_agg(id ORDER BY id))[1] AS oldest, count(*) AS jobs FROM (
  SELECT id FROM redrive.jobs WHERE id < $1 ORDER BY id DESC LIMIT $2
) AS next
