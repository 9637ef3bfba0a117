-- An upload ends once: a blob that has left 'uploading' stays as it is. Waits for those who have just come to share it.
UPDATE paste.blobs SET state = $2, s3_url = $3 WHERE id = $1 AND state = 'uploading'
