-- What the server is, and whether it takes writes.
SELECT
  current_setting('server_version') AS version,
  current_setting('server_version_num')::integer AS number,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS today,
  pg_is_in_recovery() AS standby,
  current_setting('transaction_read_only')::boolean AS read_only
