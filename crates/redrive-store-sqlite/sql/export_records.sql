-- Records of every kind, removed ones too.
SELECT kind, id, version, value FROM redrive_records WHERE (kind, id) > (?1, ?2) ORDER BY kind, id LIMIT ?3
