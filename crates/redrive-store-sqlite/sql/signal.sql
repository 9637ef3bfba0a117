-- Leaves a signal, once under its id.
INSERT INTO redrive_signals (job, id, name, value) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (job, id) DO NOTHING
