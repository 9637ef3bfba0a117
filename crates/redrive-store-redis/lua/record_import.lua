-- Writes records with their versions where there is none or one with a smaller version.
local R, call = KEYS[1], redis.call
local answers, at = {}, 1
for n = 1, tonumber(ARGV[1]) do
  local kind, id, version, there, value, setting = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  at = at + 6
  local slot = call('HGET', R .. 'records:' .. kind, id)
  local current = slot and tonumber(slot:match('^%d+')) or 0
  if tonumber(version) <= current then
    answers[n] = 0
  else
    call('SADD', R .. 'kinds', kind)
    call('HSET', R .. 'records:' .. kind, id, version .. ':' .. there .. ':' .. value)
    local name = kind .. '\31' .. id
    if there == '1' then
      call('ZADD', R .. 'ids:' .. kind, 0, id)
      if setting == '1' then call('HSET', R .. 'settings', name, value) end
    else
      call('ZREM', R .. 'ids:' .. kind, id)
      if setting == '1' then call('HDEL', R .. 'settings', name) end
    end
    answers[n] = 1
  end
end
return answers
