-- What is remembered at places that were taken.
SELECT given.turn, steps.place, steps.kind, steps.name, steps.value
FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS given (job, place, turn)
JOIN redrive.steps ON steps.job = given.job AND steps.place = given.place
