-- Wake-ups between nodes.

-- name: listen
-- Listens for jobs that other nodes make claimable.
LISTEN redrive;

-- name: notify
-- Notifies other nodes that jobs may have become claimable. The commit does not wait for the disk: the jobs are stored already, and
-- the wait would delay the claim that starts at the same time. $1 the sender and the message.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('redrive', $1);
