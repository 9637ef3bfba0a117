-- The children of a job that have not ended and end with it; ?2 narrows them to one fan-out. A child whose end was requested
-- before is left out: what is below it has ended already.
SELECT seq, id, lane, state, partition FROM redrive_jobs INDEXED BY redrive_children
WHERE parent = ?1 AND (?2 IS NULL OR branch = ?2) AND state < 4 AND detached = 0 AND cancel_requested = 0
ORDER BY id
