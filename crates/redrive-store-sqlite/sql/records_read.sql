-- A record with its version, removed or not.
SELECT version, value FROM redrive_records WHERE kind = ?1 AND id = ?2
