-- Removal of expired and failed pastes.

-- name: expired_blobs
-- Lists the blobs of up to ?1 expired pastes.
SELECT DISTINCT blob FROM (
    SELECT blob FROM pastes WHERE {is_expired}
    ORDER BY expires_at LIMIT ?1
);

-- name: failed_blobs
-- Lists the blobs of up to ?1 failed pastes that are more than a day old.
SELECT DISTINCT blob FROM (
    SELECT blob FROM pastes
    WHERE {failed_and_old}
    ORDER BY created_at LIMIT ?1
);

-- name: sweep_expired
-- Removes up to ?2 expired pastes of a blob.
DELETE FROM pastes WHERE code IN (
    SELECT code FROM pastes
    WHERE blob = ?1 AND {is_expired} LIMIT ?2
);

-- name: sweep_failed
-- Removes up to ?2 failed pastes of a blob that are more than a day old.
DELETE FROM pastes WHERE code IN (
    SELECT code FROM pastes
    WHERE blob = ?1 AND {failed_and_old} LIMIT ?2
);

-- fragment: is_expired
-- A paste that has expired.
expires_at <= {now}

-- fragment: failed_and_old
-- A failed paste that was created more than a day ago.
status = 'FAILED' AND created_at <= {now} - 86400000
