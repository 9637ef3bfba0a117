-- The blob that new pastes of a content share: on its way, or stored. It stays so until the transaction ends, and those
-- who would end its upload or remove it wait until then.
SELECT id FROM paste.blobs WHERE sha256 = $1 AND state IN ('uploading', 'stored') FOR SHARE
