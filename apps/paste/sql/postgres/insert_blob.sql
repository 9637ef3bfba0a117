-- A new generation of a content, whose object has a name that no other generation has; none where another node has just
-- made one.
INSERT INTO paste.blobs (id, sha256, size, state) VALUES ($1, $2, $3, 'uploading') ON CONFLICT DO NOTHING RETURNING id
