-- Sessions and prepared transactions that keep vacuum from removing rows of this database, the longest first. A vacuum's
-- own snapshot keeps nothing. A role without pg_read_all_stats is shown neither age nor query of other users' sessions.
SELECT
  pid, NULL AS prepared, usename::text AS owner, application_name AS application, state,
  left(regexp_replace(query, '\s+', ' ', 'g'), 120) AS query,
  extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s,
  greatest(age(backend_xid), age(backend_xmin)) AS transactions
FROM pg_stat_activity
WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
  AND pid <> pg_backend_pid()
  -- A standby's feedback comes from a session without a database.
  AND (datid IS NULL OR datname = current_database())
  AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS vacuum WHERE vacuum.pid = pg_stat_activity.pid)
UNION ALL
SELECT
  NULL, gid, owner::text, NULL, 'prepared', NULL,
  extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
FROM pg_prepared_xacts
WHERE database = current_database()
ORDER BY age_s DESC NULLS LAST, transactions DESC
LIMIT 20
