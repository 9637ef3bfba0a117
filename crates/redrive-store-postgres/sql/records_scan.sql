-- Records of a kind in the order of their ids.
SELECT id, version, value FROM redrive.records
WHERE kind = $1 AND id > $2 AND value IS NOT NULL
ORDER BY id LIMIT $3
