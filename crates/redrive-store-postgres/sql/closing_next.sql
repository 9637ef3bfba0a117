-- A tree that still has marks, if there is one.
SELECT tree FROM redrive.closing LIMIT 1
