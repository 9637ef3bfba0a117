-- Actions of operators on single jobs: cancel, redrive, run now, discard, pause.

-- name: find_job
-- The row, lane, state and partition of a job.
SELECT seq, id, lane, state, partition FROM redrive_jobs WHERE id = ?1;

-- name: live_children
-- The children of a job that have not ended and end with their parent; ?2 limits them to one fan-out. A child that was
-- asked to stop before is left out: its own children were asked to stop then.
SELECT seq, id, lane, state, partition FROM redrive_jobs INDEXED BY redrive_children
WHERE parent = ?1 AND (?2 IS NULL OR branch = ?2) AND state < 4 AND detached = 0 AND cancel_requested = 0
ORDER BY id;

-- name: cancel
-- Ends a job that no worker holds.
UPDATE redrive_jobs SET state = 6, finished_at = ?2, awaits = NULL WHERE seq = ?1 AND state IN (0, 1, 3);

-- name: request_cancel
-- Asks the worker of a running job to stop. The worker learns of it when it extends or settles; the job gets no more
-- children.
UPDATE redrive_jobs SET cancel_requested = 1 WHERE seq = ?1 AND state = 2;

-- name: redrive
-- Gives a dead job a new run. The condition on the state makes two concurrent redrives start one run only.
UPDATE redrive_jobs SET
  state = 0, run = run + 1, attempt = 0, next_run_at = ?2, began_at = ?2,
  wait_ms = NULL, reason = NULL, output = NULL, finished_at = NULL, cancel_requested = 0
WHERE id = ?1 AND state = 5;

-- name: run_now
-- Makes a job due now. If it was not due yet, its time budget starts now.
UPDATE redrive_jobs SET next_run_at = min(next_run_at, ?2), began_at = min(began_at, ?2)
WHERE id = ?1 AND state < 2;

-- name: delete_dead
-- Deletes a dead job.
DELETE FROM redrive_jobs WHERE id = ?1 AND state = 5;

-- name: delete_attempts
-- Deletes the attempt log of a job that is being deleted.
DELETE FROM redrive_attempts WHERE job = ?1;

-- name: delete_signals
-- Deletes the signals of a job that is being deleted.
DELETE FROM redrive_signals WHERE job = ?1;

-- name: release_uniques
-- Frees the unique keys of a job that is being deleted, except those that are reserved beyond ?2.
DELETE FROM redrive_uniques WHERE job = ?1 AND (until IS NULL OR until <= ?2);

-- name: pause
-- Pauses a job that has not ended. A job that waits only for its due time waits for the end of the pause instead.
UPDATE redrive_jobs SET
  held = 1,
  state = CASE WHEN state < 2 AND awaits IS NULL THEN 3 ELSE state END,
  awaits = CASE WHEN state < 2 AND awaits IS NULL THEN 2 ELSE awaits END
WHERE id = ?1 AND state < 4
RETURNING state;

-- name: unpause
-- Ends the pause of a job that has not ended.
UPDATE redrive_jobs SET held = 0 WHERE id = ?1 AND state < 4;
