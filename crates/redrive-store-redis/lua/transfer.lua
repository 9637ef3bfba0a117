-- Export and import of jobs and reserved keys, for moves between stores.

-- name: ids
-- Returns the ids of jobs in order, after `after`.
{job}
local after, limit = arg(), tonumber(arg())
return call('ZRANGEBYLEX', P .. 'ids', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)

-- name: export
-- Returns jobs with everything that belongs to them: row, attempts, steps, signals, and the unique key if they hold it.
{job}
local snapshots = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = call('HGETALL', P .. 'job:' .. id)
  local unique, holder = call('HGET', P .. 'job:' .. id, 'unique'), ''
  if unique then
    holder = call('GET', P .. 'unique:' .. unique) or ''
    if holder:match('^%x+') ~= id then holder = '' end
  end
  snapshots[n] = {
    row, call('ZRANGE', P .. 'attempts:' .. id, 0, -1), call('ZRANGE', P .. 'steps:' .. id, 0, -1),
    call('LRANGE', P .. 'signals:' .. id, 0, -1), holder,
  }
end
return snapshots

-- name: import
-- Adds jobs exactly as they were exported. A job that exists stays, or is replaced while the store is being filled. A job whose
-- idempotency key or unique key belongs to another job is not added.
{job} {remove}
local being_filled = arg() == '1'

local function list()
  local items = {}
  for n = 1, tonumber(arg()) do items[n] = arg() end
  return items
end

-- Another job that has the idempotency key, or that holds the unique key.
local function conflicting_job(id, row)
  if row.key then
    local known = call('GET', P .. 'key:' .. row.tenant .. '\31' .. row.key)
    local other = known and known:match('^%x+')
    if other and other ~= id then return other end
  end
  if row.unique then
    local other, reserved_until = (call('GET', P .. 'unique:' .. row.unique) or ''):match('^(%x+):(%d*)$')
    if other and other ~= id then
      local holder = call('HGET', P .. 'job:' .. other, 'state')
      local live = holder and not FINAL[holder]
      if reserved_until ~= '' and tonumber(reserved_until) > now then live = true end
      if live then return other end
    end
  end
end

-- Releases a unique key that a job holds or for which it is reserved.
local function release(id, unique)
  if (call('GET', P .. 'unique:' .. unique) or ''):match('^%x+') == id then call('DEL', P .. 'unique:' .. unique) end
  call('ZREM', P .. 'reserved_until', id)
  call('HDEL', P .. 'reserved_keys', id)
end

local function import_one()
  local id, flat, till = arg(), list(), arg()
  local log, steps, signals = list(), list(), list()
  local row = {}
  for i = 1, #flat, 2 do row[flat[i]] = flat[i + 1] end
  local existing = read(id)
  if existing and not being_filled then return 'kept', '' end
  local other = conflicting_job(id, row)
  if other then return 'conflict', other end
  if existing then remove(id, existing) end
  local held = existing and existing.unique or call('HGET', P .. 'reserved_keys', id)
  if held then release(id, held) end
  call('HSET', P .. 'job:' .. id, unpack(flat))
  call('ZADD', P .. 'ids', 0, id)
  if row.key then call('SET', P .. 'key:' .. row.tenant .. '\31' .. row.key, id .. ':' .. row.print) end
  if till ~= 'none' then call('SET', P .. 'unique:' .. row.unique, id .. ':' .. till) end
  for i = 1, #log, 2 do call('ZADD', P .. 'attempts:' .. id, log[i], log[i + 1]) end
  for i = 1, #steps, 2 do call('ZADD', P .. 'steps:' .. id, steps[i], steps[i + 1]) end
  for _, signal in ipairs(signals) do call('RPUSH', P .. 'signals:' .. id, signal) end
  index(id, row)
  update_parent(id, row, NO_CHILD, child_counts(row))
  return existing and 'replaced' or 'created', ''
end

local answers = {}
for _ = 1, tonumber(arg()) do
  local answer, other = import_one()
  answers[#answers + 1] = answer
  answers[#answers + 1] = other
end
finish()
return answers

-- name: export_reserved_keys
-- Returns unique keys that stay reserved although their jobs were removed.
{job}
local keys = {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'reserved_until', '(' .. NOW, '+inf')) do
  local name = call('HGET', P .. 'reserved_keys', id)
  local holder, till = (call('GET', P .. 'unique:' .. name) or ''):match('^(%x+):(%d+)$')
  if holder == id and call('EXISTS', P .. 'job:' .. id) == 0 then
    keys[#keys + 1] = name
    keys[#keys + 1] = id
    keys[#keys + 1] = till
  end
end
return keys

-- name: import_reserved_keys
-- Reserves unique keys, unless another job holds the key.
{job}
local answers = {}
for n = 1, tonumber(arg()) do
  local unique, id, till = arg(), arg(), arg()
  local name = P .. 'unique:' .. unique
  local other, reserved_until = (call('GET', name) or ''):match('^(%x+):(%d*)$')
  local live = false
  if other and other ~= id then
    local holder = call('HGET', P .. 'job:' .. other, 'state')
    live = holder and not FINAL[holder]
    if reserved_until ~= '' and tonumber(reserved_until) > now then live = true end
  end
  if live then
    answers[n] = 0
  else
    call('SET', name, id .. ':' .. till)
    call('ZADD', P .. 'reserved_until', till, id)
    call('HSET', P .. 'reserved_keys', id, unique)
    if test_clock == '' then call('PEXPIREAT', name, till) end
    answers[n] = 1
  end
end
return answers

-- name: seal
-- Stops the claims of this shard, or allows them again. Claims in progress have ended when it returns.
{job}
if arg() == '1' then call('SET', P .. 'sealed', '1') else call('DEL', P .. 'sealed') end
return 1
