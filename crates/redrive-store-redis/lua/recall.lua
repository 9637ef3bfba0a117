-- A job's remembered steps in their order, from a place on.
local id, from, limit = arg(), arg(), tonumber(arg())
return call('ZRANGEBYSCORE', P .. 'steps:' .. id, from, '+inf', 'LIMIT', 0, limit)
