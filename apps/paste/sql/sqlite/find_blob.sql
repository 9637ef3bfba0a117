-- A blob, whatever its state.
SELECT sha256, size FROM blobs WHERE id = ?1
