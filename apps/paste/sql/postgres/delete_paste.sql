-- A paste goes only by its owner, and only while it is the one that was looked at.
DELETE FROM paste.pastes WHERE code = $1 AND blob = $2 AND owner_hash = $3
