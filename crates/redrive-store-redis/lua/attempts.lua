-- A page of a job's attempts, oldest first.
local id, after, limit = arg(), arg(), tonumber(arg())
return call('ZRANGEBYSCORE', P .. 'attempts:' .. id, '(' .. after, '+inf', 'LIMIT', 0, limit)
