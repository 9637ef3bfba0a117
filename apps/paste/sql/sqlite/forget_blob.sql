-- The row goes after the object, so that a crash in between leaves something to go on from.
DELETE FROM blobs WHERE id = ?1 AND state = 'removing'
