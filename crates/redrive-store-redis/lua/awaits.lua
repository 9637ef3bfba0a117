-- Jobs that wait for something, in the order of their ids, after one; and whether something is left to end below others.
local after, limit = arg(), tonumber(arg())
local waiting = call('ZRANGEBYLEX', P .. 'awaits', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
return { waiting, call('EXISTS', P .. 'closing') }
