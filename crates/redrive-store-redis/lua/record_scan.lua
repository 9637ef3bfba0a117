-- Records of a kind in the order of their ids, after one.
local R, call = KEYS[1], redis.call
local kind, after, limit = ARGV[1], ARGV[2], ARGV[3]
local found = {}
for _, id in ipairs(call('ZRANGEBYLEX', R .. 'ids:' .. kind, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)) do
  found[#found + 1] = id
  found[#found + 1] = call('HGET', R .. 'records:' .. kind, id)
end
return found
