-- Gives unique keys to jobs, from the holders that were seen and from nobody else. A job that is gone has it as a promise.
INSERT INTO redrive.uniques (tenant, kind, key, job, until, gone)
SELECT given.tenant, given.kind, given.key, given.job, given.until, NOT EXISTS (SELECT FROM redrive.jobs WHERE id = given.job)
FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::bigint[]) AS given (tenant, kind, key, job, until)
ORDER BY given.tenant, given.kind, given.key
ON CONFLICT (tenant, kind, key) DO UPDATE SET job = excluded.job, until = excluded.until, gone = excluded.gone
WHERE uniques.job = (
  SELECT seen.holder FROM unnest($1::text[], $2::text[], $3::text[], $6::uuid[]) AS seen (tenant, kind, key, holder)
  WHERE seen.tenant = excluded.tenant AND seen.kind = excluded.kind AND seen.key = excluded.key
)
RETURNING job
