-- Removed records leave no rows. The row with the empty id holds the floor of its kind: the versions of new records start above it. Any
-- other row without a value is a tombstone: a record that was removed while the store was sealed.

INSERT INTO redrive.records (kind, id, version, value)
SELECT kind, '', max(version), NULL FROM redrive.records WHERE value IS NULL GROUP BY kind;
DELETE FROM redrive.records WHERE value IS NULL AND id <> '';
-- Finds the few rows without a value among the many rows of a kind.
CREATE INDEX records_removed ON redrive.records (kind) WHERE value IS NULL;

-- Writes a record, or removes it if new_value is null, provided that the precondition holds. If must_be_absent is true, there must be no
-- record; otherwise its version must be `expected`, unless that is null. Returns the version of the write, or null if the precondition
-- does not hold. If there is nothing to remove, nothing changes, and the result is the version that a new record would exceed.
--
-- Locks, until the end of the transaction: a removal excludes creations of its kind, so that none of them reads the floor too early. A
-- seal excludes removals, so that later removals see the seal. Updates lock only their row.
CREATE FUNCTION redrive.write_record(
  of_kind text, of_id text, new_value bytea, must_be_absent boolean, expected bigint
) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  kind_lock bigint := hashtextextended('redrive.records.' || of_kind, 0);
  seal_lock bigint := hashtextextended('redrive.seal', 0);
  written   bigint;
BEGIN
  IF new_value IS NOT NULL THEN
    IF NOT must_be_absent THEN
      UPDATE redrive.records SET version = version + 1, value = new_value
      WHERE kind = of_kind AND id = of_id AND value IS NOT NULL AND (expected IS NULL OR version = expected)
      RETURNING version INTO written;
      IF written IS NOT NULL OR expected IS NOT NULL THEN
        RETURN written;
      END IF;
    END IF;
    IF of_kind = 'sealed' THEN
      PERFORM pg_advisory_xact_lock(seal_lock);
    END IF;
    PERFORM pg_advisory_xact_lock_shared(kind_lock);
    INSERT INTO redrive.records (kind, id, version, value)
    VALUES (
      of_kind, of_id, 1 + coalesce((SELECT version FROM redrive.records WHERE kind = of_kind AND id = ''), 0), new_value
    )
    ON CONFLICT (kind, id) DO UPDATE SET
      version = CASE
        WHEN records.value IS NULL THEN greatest(records.version + 1, excluded.version) ELSE records.version + 1
      END,
      value = excluded.value
    WHERE records.value IS NULL OR NOT must_be_absent
    RETURNING records.version INTO written;
    RETURN written;
  END IF;

  PERFORM pg_advisory_xact_lock_shared(seal_lock);
  PERFORM pg_advisory_xact_lock(kind_lock);
  IF NOT must_be_absent AND of_kind <> 'sealed'
    AND EXISTS (SELECT FROM redrive.records WHERE kind = 'sealed' AND value IS NOT NULL)
  THEN
    UPDATE redrive.records SET version = version + 1, value = NULL
    WHERE kind = of_kind AND id = of_id AND value IS NOT NULL AND (expected IS NULL OR version = expected)
    RETURNING version INTO written;
  ELSIF NOT must_be_absent THEN
    DELETE FROM redrive.records
    WHERE kind = of_kind AND id = of_id AND value IS NOT NULL AND (expected IS NULL OR version = expected)
    RETURNING version + 1 INTO written;
    IF written IS NOT NULL THEN
      INSERT INTO redrive.records (kind, id, version, value)
      SELECT of_kind, '', greatest(written, max(version)), NULL FROM redrive.records WHERE kind = of_kind AND value IS NULL
      ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version;
      DELETE FROM redrive.records WHERE kind = of_kind AND value IS NULL AND id <> '';
    END IF;
  END IF;
  IF written IS NULL AND expected IS NULL
    AND NOT EXISTS (SELECT FROM redrive.records WHERE kind = of_kind AND id = of_id AND value IS NOT NULL)
  THEN
    SELECT coalesce(max(version), 0) INTO written
    FROM redrive.records WHERE kind = of_kind AND id IN ('', of_id) AND value IS NULL;
  END IF;
  RETURN written;
END
$$;

-- As in 0004, but a removal no longer leaves a row. The content of version 1 stays when the name is removed, and so shows that the policy
-- was registered before.
CREATE OR REPLACE FUNCTION redrive.register_default_policy() RETURNS integer
LANGUAGE plpgsql
-- Callers of redrive.enqueue need no right to write records: this function writes only these two.
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM redrive.records WHERE kind = 'policy' AND id = 'default@1' AND value IS NOT NULL) THEN
    PERFORM redrive.write_record('policy', 'default@1', convert_to('{"maxAttempts":8,"backoff":{"backoffType":"EXPONENTIAL","initialDelayMs":1000,"multiplier":2.0,"maxDelayMs":300000},"jitter":{"jitterType":"FULL"},"totalBudgetMs":3600000,"eligibility":{"retryableStatusCodes":[408,425,429,500,502,503,504],"retryableGrpcCodes":[14],"connectionErrors":true,"timeouts":true},"attemptTimeoutMs":null}', 'UTF8'), true, NULL);
    PERFORM redrive.write_record('policy.current', 'default', convert_to('{"version":1}', 'UTF8'), true, NULL);
  END IF;
  RETURN (
    SELECT (convert_from(value, 'UTF8')::json ->> 'version')::integer FROM redrive.records
    WHERE kind = 'policy.current' AND id = 'default' AND value IS NOT NULL
  );
END
$$;
