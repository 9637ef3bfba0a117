-- Whether any paste has this blob. A statement of its own, after the lock: an earlier snapshot would miss who has just come.
SELECT EXISTS (SELECT 1 FROM paste.pastes WHERE blob = $1)
