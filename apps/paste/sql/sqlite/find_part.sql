-- A part of a content that waits for its upload.
SELECT bytes FROM contents WHERE blob = ?1 AND part = ?2
