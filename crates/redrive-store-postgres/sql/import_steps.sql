-- Adds the steps of jobs that were imported.
INSERT INTO redrive.steps (job, place, kind, name, value)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::bytea[])
