-- Notes starts that a rate counts.
INSERT INTO redrive_starts (scope, at, jobs) VALUES (?1, ?2, ?3)
