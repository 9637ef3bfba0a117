-- Records: small versioned documents.

-- The row with the empty id holds the floor of its kind: its version is at least that of every removal, and the versions of new
-- records start above it. Any other row without a value is a tombstone: a record that was removed while the store was sealed.

-- name: read
-- A record with its version. A tombstone has no value.
SELECT version, value FROM redrive_records WHERE kind = ?1 AND id = ?2;

-- name: write
-- Writes a record, or a tombstone if ?3 is NULL. The version of an existing record grows by one; a new record starts
-- above the floor.
INSERT INTO redrive_records (kind, id, version, value)
VALUES (?1, ?2, 1 + coalesce((SELECT version FROM redrive_records WHERE kind = ?1 AND id = ''), 0), ?3)
ON CONFLICT (kind, id) DO UPDATE SET
  version = CASE WHEN value IS NULL THEN max(version + 1, excluded.version) ELSE version + 1 END,
  value = excluded.value
RETURNING version;

-- name: last_version
-- The version that a new record would exceed.
SELECT coalesce(max(version), 0) FROM redrive_records WHERE kind = ?1 AND id IN ('', ?2) AND value IS NULL;

-- name: raise_floor
-- Raises the floor of a kind to ?2, and to the version of every tombstone.
INSERT INTO redrive_records (kind, id, version, value)
SELECT ?1, '', max(?2, coalesce(max(version), 0)), NULL FROM redrive_records WHERE kind = ?1 AND value IS NULL
ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version;

-- name: remove
-- Removes a record.
DELETE FROM redrive_records WHERE kind = ?1 AND id = ?2;

-- name: delete_tombstones
-- Deletes the tombstones of a kind.
DELETE FROM redrive_records WHERE kind = ?1 AND value IS NULL AND id <> '';

-- name: scan
-- The records of a kind after ?2, in the order of their ids.
SELECT id, version, value FROM redrive_records
WHERE kind = ?1 AND id > ?2 AND value IS NOT NULL
ORDER BY id LIMIT ?3;

-- name: export
-- The records of every kind, with floors and tombstones, in the order of kind and id.
SELECT kind, id, version, value FROM redrive_records WHERE (kind, id) > (?1, ?2) ORDER BY kind, id LIMIT ?3;

-- name: import
-- Writes a record with its version. A record that exists in the same version or a later one stays: versions only grow.
INSERT INTO redrive_records (kind, id, version, value) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, value = excluded.value WHERE version < excluded.version;
