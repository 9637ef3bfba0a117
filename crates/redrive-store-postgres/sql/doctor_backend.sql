-- The server's process behind this connection, for now.
SELECT pg_backend_pid() AS pid
