-- Removes unique keys whose jobs are gone and whose time has passed, never more than $2. Those that another node has its
-- hands on are passed over. $1 the time, none for the server's.
WITH chosen AS MATERIALIZED (
  SELECT ctid FROM redrive.uniques
  WHERE gone AND until <= coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint)
  ORDER BY until
  LIMIT $2::bigint
  FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive.uniques WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen))
