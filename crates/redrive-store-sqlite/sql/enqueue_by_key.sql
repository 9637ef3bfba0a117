-- The job that holds a key, and what was asked for under it.
SELECT id, fingerprint FROM redrive_jobs WHERE tenant = ?1 AND key = ?2
