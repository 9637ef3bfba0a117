-- Dead and live rows of redrive's busy tables by the server's own count, and whether and when they are vacuumed.
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
WHERE pg_namespace.nspname = 'redrive' AND pg_class.relname IN ('jobs', 'counts', 'attempts', 'steps', 'signals', 'uniques', 'starts', 'closing')
ORDER BY stats.n_dead_tup DESC, pg_class.relname
