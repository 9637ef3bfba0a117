-- Removed records leave no rows. The row with the empty id holds the floor of its kind: the versions of new records start above it.
INSERT INTO redrive_records (kind, id, version, value)
SELECT kind, '', max(version), NULL FROM redrive_records WHERE value IS NULL GROUP BY kind;
DELETE FROM redrive_records WHERE value IS NULL AND id <> '';
-- Finds the few rows without a value among the many rows of a kind.
CREATE INDEX redrive_records_removed ON redrive_records (kind) WHERE value IS NULL;
