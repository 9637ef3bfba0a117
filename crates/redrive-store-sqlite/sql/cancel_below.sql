-- Children of a job and their children, each once, whatever has become of them.
WITH RECURSIVE below (id) AS (
  SELECT id FROM redrive_jobs WHERE parent = ?1
  UNION
  SELECT redrive_jobs.id FROM below JOIN redrive_jobs ON redrive_jobs.parent = below.id
)
SELECT id FROM below
