-- A job's signals in the order in which they came, those taken too.
SELECT id, name, value, taken FROM redrive_signals WHERE job = ?1 ORDER BY seq
