-- The blob that new pastes of a content share: on its way, or stored. There is at most one.
SELECT id FROM blobs WHERE sha256 = ?1 AND state IN ('uploading', 'stored')
