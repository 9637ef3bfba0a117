-- Moving jobs between stores. Records are in records.sql.

-- name: export_jobs
-- Jobs in the order of their ids, from the index of ids.
SELECT {job_columns}, seq FROM redrive_jobs WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: export_keys
-- The fingerprint that belongs to a job's idempotency key, and the unique key that the job holds.
SELECT jobs.fingerprint, uniques.key, uniques.until
FROM redrive_jobs jobs LEFT JOIN redrive_uniques uniques ON uniques.job = jobs.id
WHERE jobs.id = ?1 LIMIT 1;

-- name: export_signals
-- All signals of a job, taken or not, in the order of their arrival.
SELECT id, name, value, taken FROM redrive_signals WHERE job = ?1 ORDER BY seq;

-- name: export_reserved_keys
-- Unique keys that are reserved beyond ?2 although their job was deleted.
SELECT tenant, kind, key, job, until FROM redrive_uniques INDEXED BY redrive_unique_jobs
WHERE job > ?1 AND until > ?2 AND NOT EXISTS (SELECT 1 FROM redrive_jobs WHERE id = redrive_uniques.job)
ORDER BY job LIMIT ?3;

-- name: import_job
-- Adds a job exactly as it was in the other store. A job with the same id was deleted before, in the same transaction.
INSERT INTO redrive_jobs ({job_columns}, fingerprint) VALUES (
  ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25,
  ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38
);

-- name: import_signal
-- Adds a signal in its order, taken or not.
INSERT INTO redrive_signals (job, id, name, value, taken) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: delete_job
-- Deletes a job that is imported again.
DELETE FROM redrive_jobs WHERE id = ?1;

-- name: delete_uniques
-- Frees all unique keys of a job that is imported again.
DELETE FROM redrive_uniques WHERE job = ?1;
