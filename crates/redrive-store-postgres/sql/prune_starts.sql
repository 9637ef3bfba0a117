-- Removes starts that no rate counts any more: those older than $2, never more than $3. Those that another node has its hands
-- on are passed over. $1 the time, none for the server's.
WITH chosen AS MATERIALIZED (
  SELECT ctid FROM redrive.starts
  WHERE at <= coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) - $2::bigint
  ORDER BY at
  LIMIT $3::bigint
  FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive.starts WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen))
