-- Whether redrive's tables are there and what this role may do with them. The catalog says so to every role.
SELECT
  has_schema_privilege(pg_namespace.oid, 'USAGE') AND has_table_privilege(versions.oid, 'SELECT') AS readable,
  has_schema_privilege(pg_namespace.oid, 'USAGE') AND coalesce(
    has_table_privilege(jobs.oid, 'SELECT') AND has_table_privilege(jobs.oid, 'INSERT')
    AND has_table_privilege(jobs.oid, 'UPDATE') AND has_table_privilege(jobs.oid, 'DELETE'), false
  ) AS writable
FROM pg_namespace
JOIN pg_class AS versions ON versions.relnamespace = pg_namespace.oid AND versions.relname = 'schema'
LEFT JOIN pg_class AS jobs ON jobs.relnamespace = pg_namespace.oid AND jobs.relname = 'jobs'
WHERE pg_namespace.nspname = 'redrive'
