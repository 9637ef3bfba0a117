-- A record with its version, unless it was removed.
SELECT id, version, value FROM redrive.records WHERE kind = $1 AND id = $2 AND value IS NOT NULL
