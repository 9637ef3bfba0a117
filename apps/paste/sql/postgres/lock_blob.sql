-- The state of a blob, which stays as it is, with the pastes that share it, until the transaction ends.
SELECT state FROM paste.blobs WHERE id = $1 FOR UPDATE
