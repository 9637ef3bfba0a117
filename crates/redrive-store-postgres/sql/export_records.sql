-- Records of every kind, removed ones too.
SELECT kind, id, version, value FROM redrive.records WHERE (kind, id) > ($1::text, $2::text) ORDER BY kind, id LIMIT $3::bigint
