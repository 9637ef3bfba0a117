-- Writes or removes a record if what is expected is there; versions grow across a removal. KEYS[1] is the records' hash tag.
-- What claims look at is kept together as well, to be read at once.
local R, call = KEYS[1], redis.call
local kind, id, expect, removes, value, setting = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local slot = call('HGET', R .. 'records:' .. kind, id)
local version, there, current = 0, '0', ''
if slot then
  local split, flag, rest = slot:match('^(%d+):(%d):(.*)$')
  version, there, current = tonumber(split), flag, rest
end
local live = there == '1'
if (expect == 'absent' and live) or (expect ~= 'any' and expect ~= 'absent' and not (live and version == tonumber(expect))) then
  return { 'conflict', live and string.format('%.0f', version) or '', current }
end
version = string.format('%.0f', version + 1)
call('SADD', R .. 'kinds', kind)
if removes == '1' then
  call('HSET', R .. 'records:' .. kind, id, version .. ':0:')
  call('ZREM', R .. 'ids:' .. kind, id)
  if setting == '1' then call('HDEL', R .. 'settings', kind .. '\31' .. id) end
else
  call('HSET', R .. 'records:' .. kind, id, version .. ':1:' .. value)
  call('ZADD', R .. 'ids:' .. kind, 0, id)
  if setting == '1' then call('HSET', R .. 'settings', kind .. '\31' .. id, value) end
end
return { 'done', version, '' }
