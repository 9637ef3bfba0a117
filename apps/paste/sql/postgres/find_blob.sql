-- A blob, whatever its state.
SELECT sha256, size FROM paste.blobs WHERE id = $1
