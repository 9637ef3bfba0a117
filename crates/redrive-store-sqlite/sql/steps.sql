-- Durable jobs: steps, signals, and the end of waits.

-- name: recall
-- The steps of a job from place ?2 on, in order.
SELECT place, name, kind, value FROM redrive_steps WHERE job = ?1 AND place >= ?2 ORDER BY place LIMIT ?3;

-- name: read_lease
-- One row if the lease is still held: whether a cancel of the job was requested. The epoch rejects a worker whose lease
-- was reclaimed meanwhile.
SELECT cancel_requested FROM redrive_jobs WHERE seq = ?1 AND id = ?2 AND epoch = ?3 AND state = 2;

-- name: insert_step
-- Stores a step unless its place has one already.
INSERT INTO redrive_steps (job, place, kind, name, value) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING;

-- name: delete_steps
-- Deletes the steps of a job.
DELETE FROM redrive_steps WHERE job = ?1;

-- name: insert_signal
-- Stores a signal. A repeated signal, with the same id, changes nothing.
INSERT INTO redrive_signals (job, id, name, value) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (job, id) DO NOTHING;

-- name: take_signal
-- Marks a signal as taken; a second time changes nothing. The value is deleted, because the step has it now. The row
-- stays, so that a repeated signal is recognised.
UPDATE redrive_signals SET taken = 1, value = x'' WHERE job = ?1 AND id = ?2 AND taken = 0;

-- name: pending_signals
-- The signals of a job that no step has taken, in the order of their arrival; ?2 is a JSON list of names.
SELECT id, name, value FROM redrive_signals INDEXED BY redrive_untaken
WHERE job = ?1 AND name IN (SELECT value FROM json_each(?2)) AND taken = 0
ORDER BY seq LIMIT ?3;

-- name: has_signal
-- One row if a job has a signal with this name that no step has taken.
SELECT 1 FROM redrive_signals INDEXED BY redrive_untaken WHERE job = ?1 AND name = ?2 AND taken = 0 LIMIT 1;

-- name: waiting_jobs
-- The next jobs after ?1 that have a wait condition, in the order of their ids.
SELECT id FROM redrive_jobs INDEXED BY redrive_awaiting WHERE awaits IS NOT NULL AND id > ?1 ORDER BY id LIMIT ?2;

-- name: find_waiting
-- A job that has a wait condition: the condition, and what decides whether it holds.
SELECT seq, lane, state, awaits, awaits_name, awaits_branch, awaits_failures, held, partition, strict, next_run_at, started_at
FROM redrive_jobs WHERE id = ?1 AND awaits IS NOT NULL;

-- name: has_live_child
-- One row if a child of a fan-out has not ended. Reads one entry of the index, however many children there are.
SELECT 1 FROM redrive_jobs INDEXED BY redrive_children WHERE parent = ?1 AND branch = ?2 AND state < 4 LIMIT 1;

-- name: count_failed_children
-- How many children of a fan-out are dead or cancelled, counted up to ?3.
SELECT count(*) FROM (
  SELECT 1 FROM redrive_jobs INDEXED BY redrive_children WHERE parent = ?1 AND branch = ?2 AND state > 4 LIMIT ?3
);

-- name: resume
-- Ends the wait of a job and makes it due at ?2. The time that the job waited by choice, ?3, does not count against its
-- time budget.
UPDATE redrive_jobs SET state = 0, awaits = NULL, next_run_at = ?2, began_at = began_at + ?3
WHERE seq = ?1;
