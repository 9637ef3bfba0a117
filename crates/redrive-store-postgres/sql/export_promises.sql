-- Unique keys that are promised beyond the end of their job, which is gone. $1 the time, none for the server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
)
SELECT tenant, kind, key, job, until FROM clock, redrive.uniques
WHERE gone AND until > clock.now AND (job > $2::uuid OR $2::uuid IS NULL)
ORDER BY job LIMIT $3::bigint
