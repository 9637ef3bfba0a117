-- Sends the notification that should come back; the payload tells it from others'.
SELECT pg_notify('redrive_doctor', $1)
