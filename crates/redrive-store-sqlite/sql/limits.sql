-- The limits of queues and partition keys, and the slots under them.

-- name: count_in_lane
-- How many jobs of a lane are in a state, as of the last commit.
SELECT jobs FROM redrive_counts WHERE lane = ?1 AND state = ?2;

-- name: count_running_in_partition
-- How many jobs of a partition are running.
SELECT count(*) FROM redrive_jobs INDEXED BY redrive_partitions WHERE partition = ?1 AND state = 2;

-- name: count_claimable_in_partition
-- How many jobs of a partition can be claimed now, counted up to ?3. Jobs in strict order do not count.
SELECT count(*) FROM (
  SELECT 1 FROM redrive_jobs INDEXED BY redrive_partitions
  WHERE partition = ?1 AND state IN (0, 1) AND next_run_at <= ?2 AND strict = 0 LIMIT ?3
);

-- name: first_in_order
-- The first job in strict order of a partition that has not ended, and whether it waits for a free slot.
SELECT id, awaits IS 3 FROM redrive_jobs INDEXED BY redrive_strict WHERE partition = ?1 AND strict = 1 AND state < 4 ORDER BY id LIMIT 1;

-- name: next_for_slot
-- The job of a partition and lane that has waited longest for a free slot.
SELECT next_run_at, id FROM redrive_jobs INDEXED BY redrive_turns
WHERE partition = ?1 AND lane = ?2 AND awaits = 3 AND strict = 0 ORDER BY next_run_at, id LIMIT 1;

-- name: insert_starts
-- Records ?3 starts for a rate limit.
INSERT INTO redrive_starts (scope, at, jobs) VALUES (?1, ?2, ?3);

-- name: recent_starts
-- The starts within the interval of a rate limit, oldest first.
SELECT at, jobs FROM redrive_starts WHERE scope = ?1 AND at > ?2 ORDER BY at;

-- name: delete_old_starts
-- Deletes the starts before the interval of a rate limit.
DELETE FROM redrive_starts WHERE scope = ?1 AND at <= ?2;
