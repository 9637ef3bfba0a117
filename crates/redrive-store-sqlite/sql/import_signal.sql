-- Adds a signal in its place, taken or not.
INSERT INTO redrive_signals (job, id, name, value, taken) VALUES (?1, ?2, ?3, ?4, ?5)
