-- Imports come one after the other: what one has looked up stays so until it has written.
SELECT pg_advisory_xact_lock($1::integer, $2::integer)
