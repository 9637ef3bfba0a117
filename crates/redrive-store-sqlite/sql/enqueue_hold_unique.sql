-- Gives a unique key to a job, whoever had it.
INSERT INTO redrive_uniques (tenant, kind, key, job, until) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (tenant, kind, key) DO UPDATE SET job = excluded.job, until = excluded.until
