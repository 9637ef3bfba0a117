-- Small versioned documents. KEYS[1] is the key prefix of the records, which all have one hash tag.

-- The field '' of a kind is its floor: it is at least the version of every removal, and the versions of new records start above it. Any
-- other field without a value is a tombstone: a record that was removed while the store was sealed. The set `removed:KIND` lists the
-- tombstones.

-- name: write
-- Writes or removes a record if the precondition holds. Versions keep growing across a removal.
-- Records that claims read are also stored in the hash `settings`, so that one command reads them all.
local R, call = KEYS[1], redis.call
local kind, id, expect, removes, value, setting = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local records, tombstones = R .. 'records:' .. kind, R .. 'removed:' .. kind
local function version_of(stored) return stored and tonumber(stored:match('^%d+')) or 0 end
local stored = call('HGET', records, id)
local version, live, current = version_of(stored), false, ''
if stored then
  local flag, rest = stored:match('^%d+:(%d):(.*)$')
  live, current = flag == '1', rest
end
if (expect == 'absent' and live) or (expect ~= 'any' and expect ~= 'absent' and not (live and version == tonumber(expect))) then
  return { 'conflict', live and string.format('%.0f', version) or '', current }
end
local floor = version_of(call('HGET', records, ''))
if removes == '1' and not live then
  return { 'done', string.format('%.0f', math.max(version, floor)), '' }
end
version = (live and version or math.max(version, floor)) + 1
local new_version = string.format('%.0f', version)
call('SADD', R .. 'kinds', kind)
if removes == '0' then
  call('HSET', records, id, new_version .. ':1:' .. value)
  call('ZADD', R .. 'ids:' .. kind, 0, id)
  call('SREM', tombstones, id)
  if setting == '1' then call('HSET', R .. 'settings', kind .. '\31' .. id, value) end
  return { 'done', new_version, '' }
end
local sealed = kind ~= 'sealed' and call('ZCARD', R .. 'ids:sealed') > 0
call('ZREM', R .. 'ids:' .. kind, id)
if setting == '1' then call('HDEL', R .. 'settings', kind .. '\31' .. id) end
if sealed then
  call('HSET', records, id, new_version .. ':0:')
  call('SADD', tombstones, id)
  return { 'done', new_version, '' }
end
call('HDEL', records, id)
local obsolete = call('SMEMBERS', tombstones)
if call('HEXISTS', records, '') == 0 then
  -- The first removal of this kind: earlier releases kept every removed record, and no list of them.
  obsolete = {}
  local all = call('HGETALL', records)
  for n = 1, #all, 2 do
    if all[n + 1]:match('^%d+:(%d)') == '0' then obsolete[#obsolete + 1] = all[n] end
  end
end
floor = math.max(floor, version)
for _, other in ipairs(obsolete) do
  floor = math.max(floor, version_of(call('HGET', records, other)))
  call('HDEL', records, other)
end
call('DEL', tombstones)
call('HSET', records, '', string.format('%.0f', floor) .. ':0:')
return { 'done', new_version, '' }

-- name: scan
-- Returns records of a kind in the order of their ids, after `after`.
local R, call = KEYS[1], redis.call
local kind, after, limit = ARGV[1], ARGV[2], ARGV[3]
local found = {}
for _, id in ipairs(call('ZRANGEBYLEX', R .. 'ids:' .. kind, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)) do
  found[#found + 1] = id
  found[#found + 1] = call('HGET', R .. 'records:' .. kind, id)
end
return found

-- name: import
-- Writes records with their versions, unless the stored version is at least as new.
local R, call = KEYS[1], redis.call
local answers, at = {}, 1
for n = 1, tonumber(ARGV[1]) do
  local kind, id, version, live, value, setting = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  at = at + 6
  local stored = call('HGET', R .. 'records:' .. kind, id)
  local current = stored and tonumber(stored:match('^%d+')) or 0
  if tonumber(version) <= current then
    answers[n] = 0
  else
    call('SADD', R .. 'kinds', kind)
    call('HSET', R .. 'records:' .. kind, id, version .. ':' .. live .. ':' .. value)
    local name = kind .. '\31' .. id
    if live == '1' then
      call('ZADD', R .. 'ids:' .. kind, 0, id)
      call('SREM', R .. 'removed:' .. kind, id)
      if setting == '1' then call('HSET', R .. 'settings', name, value) end
    elseif id ~= '' then
      call('ZREM', R .. 'ids:' .. kind, id)
      call('SADD', R .. 'removed:' .. kind, id)
      if setting == '1' then call('HDEL', R .. 'settings', name) end
    end
    answers[n] = 1
  end
end
return answers
