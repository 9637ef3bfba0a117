-- Lets nobody else count in these scopes ($1 whose locks, $2 which, in order) until the end of the transaction, and reads the
-- quotas of queues ($3).
WITH locked AS MATERIALIZED (
  SELECT pg_advisory_xact_lock($1::integer, stripe) FROM unnest($2::integer[]) AS stripe
), all_locked AS MATERIALIZED (
  SELECT count(*) AS locks FROM locked
)
-- The locks come first whatever is joined: every one of their rows has to be answered with.
SELECT records.id, records.value FROM all_locked
LEFT JOIN redrive.records ON records.kind = 'quota' AND records.id = ANY ($3::text[]) AND records.value IS NOT NULL
