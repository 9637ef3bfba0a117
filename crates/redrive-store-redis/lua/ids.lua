-- Jobs in the order of their ids, after one.
local after, limit = arg(), tonumber(arg())
return call('ZRANGEBYLEX', P .. 'ids', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
