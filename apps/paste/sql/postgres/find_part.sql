-- A part of a content that waits for its upload.
SELECT bytes FROM paste.contents WHERE blob = $1 AND part = $2
