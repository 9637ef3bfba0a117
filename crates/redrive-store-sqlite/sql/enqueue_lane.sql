-- Gives a lane its number.
INSERT INTO redrive_lanes (queue, kind, priority) VALUES (?1, ?2, ?3) RETURNING lane
