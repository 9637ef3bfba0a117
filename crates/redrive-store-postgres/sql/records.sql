-- Records: small versioned documents with compare-and-set.

-- name: read
-- Reads a record with its version, unless it was removed. $1 the kind; $2 the id.
SELECT id, version, value FROM redrive.records WHERE kind = $1 AND id = $2 AND value IS NOT NULL;

-- name: scan
-- Reads records of a kind in the order of their ids. $1 the kind; $2 the id to continue after; $3 the maximum number of records.
SELECT id, version, value FROM redrive.records
WHERE kind = $1 AND id > $2 AND value IS NOT NULL
ORDER BY id LIMIT $3;

-- name: write
-- Writes or removes a record if it is as expected. The version only grows, across removals too. $1 the kind; $2 the id; $3 the value, NULL to
-- remove; $4 whether there must be no record; $5 the version that the record must have. Returns no row if the record is not as expected.
SELECT version FROM redrive.write_record($1::text, $2::text, $3::bytea, $4::boolean, $5::bigint) AS version WHERE version IS NOT NULL;

-- name: lock_for_seal
-- Waits for the end of all running claims and blocks new ones until the end of the transaction, so that no claim misses the seal.
LOCK TABLE redrive.ready, redrive.claims IN EXCLUSIVE MODE;
