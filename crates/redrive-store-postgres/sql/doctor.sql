-- The reads of redrive doctor. No statement here writes to a table, takes a lock that others wait for, or needs a superuser.

-- name: server
-- Reads the version of the server, and whether it accepts writes.
SELECT
  current_setting('server_version') AS version,
  current_setting('server_version_num')::integer AS number,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS today,
  pg_is_in_recovery() AS standby,
  current_setting('transaction_read_only')::boolean AS read_only;

-- name: schema
-- Reads whether the tables exist and what this role may do with them. `missing` lists the tables that it may not write, and the
-- sequence if it may not use it. Every role can read the catalog.
SELECT
  has_schema_privilege(pg_namespace.oid, 'USAGE') AS usable,
  has_schema_privilege(pg_namespace.oid, 'USAGE') AND has_table_privilege(versions.oid, 'SELECT') AS readable,
  (
    SELECT string_agg('redrive.' || parts.relname, ', ' ORDER BY parts.relname) FROM pg_class AS parts
    WHERE parts.relnamespace = pg_namespace.oid AND CASE
      WHEN parts.relkind = 'r' AND parts.relname <> 'schema' THEN NOT (
        has_table_privilege(parts.oid, 'SELECT') AND has_table_privilege(parts.oid, 'INSERT')
        AND has_table_privilege(parts.oid, 'UPDATE') AND has_table_privilege(parts.oid, 'DELETE')
      )
      WHEN parts.relkind = 'v' THEN NOT has_table_privilege(parts.oid, 'SELECT')
      WHEN parts.relname = 'claim_numbers' THEN NOT has_sequence_privilege(parts.oid, 'USAGE')
      ELSE false
    END
  ) AS missing
FROM pg_namespace
JOIN pg_class AS versions ON versions.relnamespace = pg_namespace.oid AND versions.relname = 'schema'
WHERE pg_namespace.nspname = 'redrive';

-- name: settings
-- Reads settings, as they apply to this role in this database, and where each value comes from. $1 the names.
SELECT name, setting, source FROM pg_settings WHERE name = ANY($1::text[]);

-- name: seals
-- Reads whether the store is sealed, and by what.
SELECT id, value FROM redrive.records WHERE kind = 'sealed' AND value IS NOT NULL ORDER BY id;

-- name: vacuum_blockers
-- Lists sessions and prepared transactions that keep vacuum from removing rows of this database, the oldest first. The snapshot of a
-- vacuum keeps nothing. A role without pg_read_all_stats sees neither age nor query of the sessions of other users.
SELECT
  pid, NULL AS prepared, usename::text AS owner, application_name AS application, state,
  left(regexp_replace(query, '\s+', ' ', 'g'), 120) AS query,
  extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s,
  greatest(age(backend_xid), age(backend_xmin)) AS transactions
FROM pg_stat_activity
WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
  AND pid <> pg_backend_pid()
  -- The feedback of a standby comes from a session without a database.
  AND (datid IS NULL OR datname = current_database())
  AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS vacuum WHERE vacuum.pid = pg_stat_activity.pid)
UNION ALL
SELECT
  NULL, gid, owner::text, NULL, 'prepared', NULL,
  extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
FROM pg_prepared_xacts
WHERE database = current_database()
ORDER BY age_s DESC NULLS LAST, transactions DESC
LIMIT 20;

-- name: replication_slots
-- Lists replication slots that keep vacuum from removing rows, of every table or of the catalog only, and the size of the log that they
-- keep.
SELECT
  slot_name::text AS name, active, active_pid AS pid, age(xmin) AS transactions, age(catalog_xmin) AS catalog_transactions,
  CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END AS log_bytes
FROM pg_replication_slots
WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
ORDER BY greatest(age(xmin), age(catalog_xmin)) DESC
LIMIT 20;

-- name: tables
-- Counts dead and live rows of the busy tables, by the statistics of the server, and reads whether and when they are vacuumed.
SELECT
  pg_class.relname::text AS name, stats.n_live_tup AS live, stats.n_dead_tup AS dead,
  pg_table_size(pg_class.oid) AS bytes,
  extract(epoch FROM clock_timestamp() - greatest(stats.last_autovacuum, stats.last_vacuum))::float8 AS vacuumed_s,
  coalesce(
    (SELECT option_value FROM pg_options_to_table(pg_class.reloptions) WHERE option_name = 'autovacuum_enabled'), 'on'
  )::boolean AS autovacuum
FROM pg_class
JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
JOIN pg_stat_user_tables AS stats ON stats.relid = pg_class.oid
WHERE pg_namespace.nspname = 'redrive' AND pg_class.relname IN (
  'jobs', 'ready', 'claims', 'progress', 'waiting', 'ended', 'children', 'slots', 'ordered', 'counts', 'attempts', 'steps', 'signals',
  'uniques', 'starts', 'closing'
)
ORDER BY stats.n_dead_tup DESC, pg_class.relname;

-- name: indexes
-- Lists every index of the tables, with its definition as the server prints it, its size and the rows of its table. `constrained` is the
-- table whose constraint needs the index: such an index can only be dropped with its constraint.
SELECT
  named.relname::text AS name,
  pg_index.indisvalid AND pg_index.indisready AND pg_index.indislive AS valid,
  pg_get_indexdef(named.oid) AS definition,
  pg_relation_size(named.oid) AS bytes,
  coalesce(stats.n_live_tup, 0) AS rows,
  (
    SELECT owner.relname::text FROM pg_constraint JOIN pg_class AS owner ON owner.oid = pg_constraint.conrelid
    WHERE pg_constraint.conindid = named.oid AND pg_constraint.contype IN ('p', 'u')
  ) AS constrained
FROM pg_index
JOIN pg_class AS named ON named.oid = pg_index.indexrelid
JOIN pg_namespace ON pg_namespace.oid = named.relnamespace
LEFT JOIN pg_stat_user_tables AS stats ON stats.relid = pg_index.indrelid
WHERE pg_namespace.nspname = 'redrive'
ORDER BY name;

-- name: clock
-- Reads the clock of the server, in microseconds since the Unix epoch.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us;

-- name: connections
-- Reads each limit of connections that applies to this role in this database, and how many connections are in use. $1 the
-- application name of the doctor, whose connections do not count; $2 that of redrive.
WITH clients AS MATERIALIZED (
  SELECT datname, usename, application_name FROM pg_stat_activity
  WHERE datid IS NOT NULL AND application_name <> $1::text
    -- backend_type is hidden from a role without pg_read_all_stats. Then the few processes that are not clients count too.
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
ORDER BY most - reserved - used;

-- name: backend
-- Reads the process id of the server process behind this connection.
SELECT pg_backend_pid() AS pid;

-- name: listen
-- Listens for the doctor's own notification, on a channel that wakes nobody else.
LISTEN redrive_doctor;

-- name: notify
-- Sends the notification that should come back. The payload identifies it.
SELECT pg_notify('redrive_doctor', $1);

-- name: unlisten
-- Stops listening, so that a connection that a pooler keeps is clean.
UNLISTEN redrive_doctor;

-- name: notification_queue
-- Reads how full the notification queue is, from 0 to 1. When it is full, commits that notify fail.
SELECT pg_notification_queue_usage() AS used;
