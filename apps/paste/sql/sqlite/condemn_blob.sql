-- From here on no paste can come to share the blob: it is no longer live.
UPDATE blobs SET state = 'removing' WHERE id = ?1
