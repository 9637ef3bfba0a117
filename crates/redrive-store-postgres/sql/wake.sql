-- Wake-ups between nodes.

-- name: listen
-- Listens for jobs that other nodes make claimable.
LISTEN redrive;

-- name: notify
-- Notifies other nodes that jobs may have become claimable. $1 the sender and the message.
SELECT pg_notify('redrive', $1);
