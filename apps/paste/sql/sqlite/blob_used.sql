-- Whether any paste has this blob.
SELECT EXISTS (SELECT 1 FROM pastes WHERE blob = ?1)
