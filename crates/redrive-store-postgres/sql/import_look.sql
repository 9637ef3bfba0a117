-- What is there of jobs that are to be imported: themselves, whoever has their keys, and whether they may be replaced. $1 the
-- time, none for the server's.
WITH clock AS MATERIALIZED (
  SELECT coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
), given AS MATERIALIZED (
  SELECT * FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[])
    WITH ORDINALITY AS given (id, tenant, key, kind, unique_key, place)
)
SELECT
  given.place, there.id IS NOT NULL AS there, named.id AS named, uniques.job AS holder,
  coalesce(held.state < 4 OR uniques.until > clock.now, false) AS in_force,
  EXISTS (
    SELECT FROM redrive.records WHERE records.kind = 'sealed' AND records.id = 'being-filled' AND records.value IS NOT NULL
  ) AS filling
FROM clock, given
LEFT JOIN redrive.jobs AS there ON there.id = given.id
LEFT JOIN redrive.jobs AS named ON named.tenant = given.tenant AND named.key = given.key
LEFT JOIN redrive.uniques ON uniques.tenant = given.tenant AND uniques.kind = given.kind AND uniques.key = given.unique_key
LEFT JOIN redrive.jobs AS held ON held.id = uniques.job
ORDER BY given.place
