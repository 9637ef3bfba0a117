-- A part of a content that waits for its upload.
INSERT INTO contents (blob, part, bytes) VALUES (?1, ?2, ?3)
