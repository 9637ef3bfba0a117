-- The state of a blob; the one writer keeps it as it is until the transaction ends.
SELECT state FROM blobs WHERE id = ?1
