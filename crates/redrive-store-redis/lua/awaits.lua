-- Jobs that wait for something, in the order of their ids, after one.
local after, limit = arg(), tonumber(arg())
return call('ZRANGEBYLEX', P .. 'awaits', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
