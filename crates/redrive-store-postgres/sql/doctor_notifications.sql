-- How full the queue of notifications is, from 0 to 1. When it is full, commits that notify fail.
SELECT pg_notification_queue_usage() AS used
