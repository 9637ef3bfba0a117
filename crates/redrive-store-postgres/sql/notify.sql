-- Tells other nodes that something may have become claimable; the payload says who tells.
SELECT pg_notify('redrive', $1)
