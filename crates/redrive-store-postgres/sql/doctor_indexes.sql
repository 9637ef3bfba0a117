-- Every index of redrive's tables, as the server would write it down, with its size and the rows of its table. One
-- that a constraint needs goes only with it: `constrained` is its table.
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
ORDER BY name
