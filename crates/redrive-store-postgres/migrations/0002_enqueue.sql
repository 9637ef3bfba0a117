-- Enqueues from any language, inside the caller's own transaction: after a rollback there is no job. The names, order and
-- meaning of the arguments are the same in all versions; new ones are added at the end, with a default.
--
-- Returns the id of the job, or of the existing job if the same request was made before with the same key. A key that belongs to
-- a different request is an error (unique_violation).
CREATE FUNCTION redrive.enqueue(
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
  IF version IS NULL THEN
    RAISE undefined_object USING
      MESSAGE = format('there is no policy named %s', quote_literal(enqueue.policy)),
      HINT = 'Register it first: POST /retry-policies, or start a worker or service once, which registers "default".';
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

-- A time-ordered id (UUID version 7).
CREATE FUNCTION redrive.new_id() RETURNS uuid LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT encode(
    set_byte(
      overlay(
        uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6
      ),
      6, (get_byte(uuid_send(gen_random_uuid()), 6) & 15) | 112
    ),
    'hex'
  )::uuid
$$;

-- A text with its length in front: a part of a fingerprint.
CREATE FUNCTION redrive.measured(name text) RETURNS bytea LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT set_byte('\x0000000000000000'::bytea, 0, octet_length(convert_to(name, 'UTF8'))) || convert_to(name, 'UTF8')
$$;

CREATE FUNCTION redrive.check_name(field text, name text, shortest integer, longest integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF name IS NULL OR octet_length(convert_to(name, 'UTF8')) NOT BETWEEN shortest AND longest THEN
    RAISE invalid_parameter_value USING MESSAGE = format('%s must be from %s to %s bytes long', field, shortest, longest);
  END IF;
  IF name ~ '[\x01-\x1f\x7f-\x9f]' THEN
    RAISE invalid_parameter_value USING MESSAGE = format('%s must not contain control characters', field);
  END IF;
END
$$;
