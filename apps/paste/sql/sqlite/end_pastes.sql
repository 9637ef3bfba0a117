-- Every paste that waits for a blob hears how its upload ended.
UPDATE pastes SET status = ?2, s3_url = ?3 WHERE blob = ?1 AND status = 'IN_PROGRESS'
