-- redrive.enqueue works before the first worker or service has run: it registers the policy "default" when it first needs it. The
-- migration itself writes no record, so that a store that jobs are moved into stays empty until then.

-- Registers the policy "default" unless one with that name exists or was removed. Returns its current version, or null. The two
-- records are those that redrive_core::catalog writes: the content of version 1, which never changes, and the name that points to it.
CREATE FUNCTION redrive.register_default_policy() RETURNS integer
LANGUAGE plpgsql
-- Callers of redrive.enqueue need no right to write records: this function writes only these two.
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM redrive.records WHERE kind = 'policy.current' AND id = 'default') THEN
    INSERT INTO redrive.records (kind, id, version, value)
    VALUES ('policy', 'default@1', 1, convert_to('{"maxAttempts":8,"backoff":{"backoffType":"EXPONENTIAL","initialDelayMs":1000,"multiplier":2.0,"maxDelayMs":300000},"jitter":{"jitterType":"FULL"},"totalBudgetMs":3600000,"eligibility":{"retryableStatusCodes":[408,425,429,500,502,503,504],"retryableGrpcCodes":[14],"connectionErrors":true,"timeouts":true},"attemptTimeoutMs":null}', 'UTF8'))
    ON CONFLICT DO NOTHING;
    INSERT INTO redrive.records (kind, id, version, value)
    VALUES ('policy.current', 'default', 1, convert_to('{"version":1}', 'UTF8'))
    ON CONFLICT DO NOTHING;
  END IF;
  RETURN (
    SELECT (convert_from(value, 'UTF8')::json ->> 'version')::integer FROM redrive.records
    WHERE kind = 'policy.current' AND id = 'default' AND value IS NOT NULL
  );
END
$$;

-- As in 0002, with the default policy registered when it is missing.
CREATE OR REPLACE FUNCTION redrive.enqueue(
  kind            text,
  payload         json DEFAULT 'null',
  queue           text DEFAULT 'default',
  priority        integer DEFAULT 5,
  run_at          timestamptz DEFAULT NULL,
  key             text DEFAULT NULL,
  policy          text DEFAULT 'default',
  tenant          text DEFAULT '',
  timeout         interval DEFAULT NULL,
  id              uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  now_ms    bigint := floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint;
  due       bigint := coalesce(floor(extract(epoch FROM enqueue.run_at) * 1000)::bigint, now_ms);
  bytes     bytea := convert_to(enqueue.payload::text, 'UTF8');
  job       uuid := coalesce(enqueue.id, redrive.new_id());
  version   integer;
  number    integer;
  print     bytea;
  added     uuid;
  holder    uuid;
  old_print bytea;
BEGIN
  PERFORM redrive.check_name('kind', enqueue.kind, 1, 128);
  PERFORM redrive.check_name('queue', enqueue.queue, 1, 128);
  PERFORM redrive.check_name('tenant', enqueue.tenant, 0, 128);
  PERFORM redrive.check_name('policy', enqueue.policy, 1, 128);
  IF enqueue.key IS NOT NULL THEN
    PERFORM redrive.check_name('key', enqueue.key, 1, 256);
  END IF;
  IF enqueue.priority NOT BETWEEN 0 AND 9 THEN
    RAISE invalid_parameter_value USING MESSAGE = format('priority must be from 0 to 9, is %s', enqueue.priority);
  END IF;
  IF octet_length(bytes) > 98304 THEN
    RAISE invalid_parameter_value USING MESSAGE =
      format('payload is %s bytes long, at most 98304 are allowed', octet_length(bytes));
  END IF;
  IF due > now_ms + 31536000000 THEN
    RAISE invalid_parameter_value USING MESSAGE = 'run_at must be at most one year ahead';
  END IF;

  SELECT (convert_from(records.value, 'UTF8')::json ->> 'version')::integer INTO version
  FROM redrive.records
  WHERE records.kind = 'policy.current' AND records.id = enqueue.policy AND records.value IS NOT NULL;
  IF version IS NULL AND enqueue.policy = 'default' THEN
    version := redrive.register_default_policy();
  END IF;
  IF version IS NULL THEN
    RAISE undefined_object USING
      MESSAGE = format('there is no policy named %s', quote_literal(enqueue.policy)),
      HINT = 'Register it first: POST /retry-policies.';
  END IF;

  LOOP
    SELECT lanes.lane INTO number FROM redrive.lanes
    WHERE lanes.queue = enqueue.queue AND lanes.kind = enqueue.kind AND lanes.priority = enqueue.priority;
    EXIT WHEN FOUND;
    INSERT INTO redrive.lanes (queue, kind, priority)
    VALUES (enqueue.queue, enqueue.kind, enqueue.priority::smallint) ON CONFLICT DO NOTHING;
  END LOOP;

  IF enqueue.key IS NOT NULL THEN
    print := sha256(
      redrive.measured(enqueue.queue) || redrive.measured(enqueue.kind) || redrive.measured(enqueue.policy)
      || set_byte('\x00'::bytea, 0, enqueue.priority) || bytes
    );
  END IF;

  LOOP
    INSERT INTO redrive.jobs (
      id, lane, next_run_at, began_at, created_at, timeout_ms, tenant, policy, key, fingerprint, payload
    ) VALUES (
      job, number, due, due, now_ms, ceil(extract(epoch FROM enqueue.timeout) * 1000)::bigint, enqueue.tenant,
      enqueue.policy || '@' || version, enqueue.key, print, bytes
    )
    ON CONFLICT DO NOTHING
    RETURNING jobs.id INTO added;
    IF added IS NOT NULL THEN
      INSERT INTO redrive.counts (lane, state, jobs) VALUES (number, 0, 1);
      PERFORM pg_notify('redrive', '');
      RETURN added;
    END IF;
    PERFORM FROM redrive.jobs WHERE jobs.id = job;
    IF FOUND THEN
      RETURN job;
    END IF;
    SELECT jobs.id, jobs.fingerprint INTO holder, old_print FROM redrive.jobs
    WHERE jobs.tenant = enqueue.tenant AND jobs.key = enqueue.key;
    IF FOUND AND old_print = print THEN
      RETURN holder;
    ELSIF FOUND THEN
      RAISE unique_violation USING
        MESSAGE = format('the key %s belongs to a different request, job %s', quote_literal(enqueue.key), holder);
    END IF;
    -- The job with the key was removed between the two statements: try again.
  END LOOP;
END
$$;
