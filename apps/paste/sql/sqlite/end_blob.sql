-- An upload ends once: a blob that has left 'uploading' stays as it is.
UPDATE blobs SET state = ?2, s3_url = ?3 WHERE id = ?1 AND state = 'uploading'
