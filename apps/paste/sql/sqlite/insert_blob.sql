-- A new generation of a content, whose object has a name that no other generation has.
INSERT INTO blobs (id, sha256, size, state) VALUES (?1, ?2, ?3, 'uploading')
