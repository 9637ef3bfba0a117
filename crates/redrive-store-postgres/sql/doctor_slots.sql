-- Replication slots that keep vacuum from removing rows, of every table or of the catalog alone, and the log they keep.
SELECT
  slot_name::text AS name, active, active_pid AS pid, age(xmin) AS transactions, age(catalog_xmin) AS catalog_transactions,
  CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END AS log_bytes
FROM pg_replication_slots
WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
ORDER BY greatest(age(xmin), age(catalog_xmin)) DESC
LIMIT 20
