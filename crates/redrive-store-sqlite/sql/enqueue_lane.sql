-- Gives a pair of queue and kind its number.
INSERT INTO redrive_lanes (queue, kind) VALUES (?1, ?2) RETURNING lane
