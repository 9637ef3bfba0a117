-- Whether a code is taken, by a paste in any state: it is free again when its row is gone.
SELECT EXISTS (SELECT 1 FROM pastes WHERE code = ?1)
