-- What was there instead of jobs that could not be added: the job itself from an earlier try, or the holder of its key.
SELECT given.place, by_id.id AS by_id, by_key.id AS by_key, by_key.fingerprint
FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS given (id, tenant, key, place)
LEFT JOIN redrive.jobs by_id ON by_id.id = given.id
LEFT JOIN redrive.jobs by_key ON by_key.tenant = given.tenant AND by_key.key = given.key
