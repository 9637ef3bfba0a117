-- A new paste shares a blob, and is ready at once where that is stored already.
UPDATE paste.pastes SET blob = b.id, s3_url = b.s3_url,
    status = CASE b.state WHEN 'stored' THEN 'PROCESSED' ELSE 'IN_PROGRESS' END
FROM paste.blobs b WHERE code = $1 AND b.id = $2
RETURNING status
