-- A part of a content that waits for its upload.
INSERT INTO paste.contents (blob, part, bytes) VALUES ($1, $2, $3)
