-- Whether the store is sealed, and by what.
SELECT id, value FROM redrive.records WHERE kind = 'sealed' AND value IS NOT NULL ORDER BY id
