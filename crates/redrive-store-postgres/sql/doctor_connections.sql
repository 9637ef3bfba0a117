-- Each limit of connections that holds for this role in this database, and how many of it are taken. $1 is what the
-- doctor's own connections are called, which do not count, and $2 what redrive's are.
WITH clients AS MATERIALIZED (
  SELECT datname, usename, application_name FROM pg_stat_activity
  WHERE datid IS NOT NULL AND application_name <> $1::text
    -- Hidden from a role without pg_read_all_stats; the few that are no clients count then too.
    AND coalesce(backend_type, 'client backend') = 'client backend'
), limits AS (
  SELECT
    'max_connections' AS name,
    current_setting('max_connections')::integer AS most,
    current_setting('superuser_reserved_connections')::integer
      + coalesce(current_setting('reserved_connections', true), '0')::integer AS reserved,
    (SELECT count(*) FROM clients) AS used
  UNION ALL
  SELECT 'the CONNECTION LIMIT of this database', datconnlimit, 0,
    (SELECT count(*) FROM clients WHERE datname = current_database())
  FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0
  UNION ALL
  SELECT 'the CONNECTION LIMIT of this role', rolconnlimit, 0,
    (SELECT count(*) FROM clients WHERE usename = session_user)
  FROM pg_roles WHERE rolname = session_user AND rolconnlimit >= 0
)
SELECT limits.*, (SELECT count(*) FROM clients WHERE application_name = $2::text) AS ours FROM limits
ORDER BY most - reserved - used
