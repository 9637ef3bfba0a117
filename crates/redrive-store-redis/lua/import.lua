-- Adds jobs exactly as they are. One that is there stays, or is replaced while the store is being filled; one whose key or unique
-- key belongs to another is not added.
local filling = arg() == '1'

local function list()
  local items = {}
  for n = 1, tonumber(arg()) do items[n] = arg() end
  return items
end

-- Another job that has the key, or holds the unique key in force.
local function owner(id, row)
  if row.key then
    local known = call('GET', P .. 'key:' .. row.tenant .. '\31' .. row.key)
    local other = known and known:match('^%x+')
    if other and other ~= id then return other end
  end
  if row.unique then
    local other, promised = (call('GET', P .. 'unique:' .. row.unique) or ''):match('^(%x+):(%d*)$')
    if other and other ~= id then
      local holder = call('HGET', P .. 'job:' .. other, 'state')
      local live = holder and not FINAL[holder]
      if promised ~= '' and tonumber(promised) > now then live = true end
      if live then return other end
    end
  end
end

-- Frees a unique key that a job holds, whatever was promised.
local function release(id, unique)
  if (call('GET', P .. 'unique:' .. unique) or ''):match('^%x+') == id then call('DEL', P .. 'unique:' .. unique) end
  call('ZREM', P .. 'promises', id)
  call('HDEL', P .. 'promised', id)
end

local function import_one()
  local id, flat, till = arg(), list(), arg()
  local log, steps, signals = list(), list(), list()
  local row = {}
  for i = 1, #flat, 2 do row[flat[i]] = flat[i + 1] end
  local there = read(id)
  if there and not filling then return 'kept', '' end
  local other = owner(id, row)
  if other then return 'conflict', other end
  if there then remove(id, there) end
  local held = there and there.unique or call('HGET', P .. 'promised', id)
  if held then release(id, held) end
  call('HSET', P .. 'job:' .. id, unpack(flat))
  call('ZADD', P .. 'ids', 0, id)
  if row.key then call('SET', P .. 'key:' .. row.tenant .. '\31' .. row.key, id .. ':' .. row.print) end
  if till ~= 'none' then call('SET', P .. 'unique:' .. row.unique, id .. ':' .. till) end
  for i = 1, #log, 2 do call('ZADD', P .. 'attempts:' .. id, log[i], log[i + 1]) end
  for i = 1, #steps, 2 do call('ZADD', P .. 'steps:' .. id, steps[i], steps[i + 1]) end
  for _, signal in ipairs(signals) do call('RPUSH', P .. 'signals:' .. id, signal) end
  place(id, row)
  update_family(id, row, NO_CHILD, standing(row))
  return there and 'replaced' or 'created', ''
end

local answers = {}
for _ = 1, tonumber(arg()) do
  local answer, other = import_one()
  answers[#answers + 1] = answer
  answers[#answers + 1] = other
end
finish()
return answers
