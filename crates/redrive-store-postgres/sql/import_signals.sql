-- Adds the signals of jobs that were imported, in the order given, taken or not.
INSERT INTO redrive.signals (job, id, name, value, taken)
SELECT job, id, name, value, taken
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::boolean[])
  WITH ORDINALITY AS given (job, id, name, value, taken, turn)
ORDER BY turn
