-- Registers the policy "default", so that redrive.enqueue works before the first worker or service has run. A policy of that
-- name that is there already stays, and so does the record of one that was removed.
--
-- The two records are those that redrive_core::catalog writes: the content of version 1, which never changes, and the name that
-- points to it.
WITH content AS (
  INSERT INTO redrive.records (kind, id, version, value)
  SELECT 'policy', 'default@1', 1, convert_to('{"maxAttempts":8,"backoff":{"backoffType":"EXPONENTIAL","initialDelayMs":1000,"multiplier":2.0,"maxDelayMs":300000},"jitter":{"jitterType":"FULL"},"totalBudgetMs":3600000,"eligibility":{"retryableStatusCodes":[408,425,429,500,502,503,504],"retryableGrpcCodes":[14],"connectionErrors":true,"timeouts":true},"attemptTimeoutMs":null}', 'UTF8')
  WHERE NOT EXISTS (SELECT FROM redrive.records WHERE kind = 'policy.current' AND id = 'default')
  ON CONFLICT DO NOTHING
  RETURNING 1
)
INSERT INTO redrive.records (kind, id, version, value)
SELECT 'policy.current', 'default', 1, convert_to('{"version":1}', 'UTF8') FROM content
ON CONFLICT DO NOTHING;
