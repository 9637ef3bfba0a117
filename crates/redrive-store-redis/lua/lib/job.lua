-- Begins every script on one partition: its arguments, its clock, and a job's places in the partition's indexes.
-- A job is the hash `job:ID`; everything under KEYS[1] has one hash tag, so that it is on one server of a cluster.
local P, call = KEYS[1], redis.call
local at = 0
local function arg() at = at + 1 return ARGV[at] end
local function whole(n) return string.format('%.0f', n) end

-- A clock of a test's own, or else the server's.
local given = arg()
local now
if given ~= '' then
  now = tonumber(given)
else
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The same as it is written, once.
local NOW = whole(now)

local FINAL = { ['4'] = true, ['5'] = true, ['6'] = true }
local CLAIMABLE = { ['0'] = true, ['1'] = true }

local function read(id)
  local flat = call('HGETALL', P .. 'job:' .. id)
  if #flat == 0 then return nil end
  local row = {}
  for i = 1, #flat, 2 do row[flat[i]] = flat[i + 1] end
  return row, flat
end

-- Of a lane PRIORITY 1f QUEUE 1f KIND.
local queues = {}
local function queue_of(lane)
  local queue = queues[lane]
  if not queue then
    queue = lane:match('^%d+\31([^\31]*)')
    queues[lane] = queue
  end
  return queue
end
local function priority_of(lane) return tonumber(lane:match('^%d+')) end

-- What counts change by is written once, at the end.
local counts = {}
local function count(lane, state, by)
  local field = queue_of(lane) .. '\31' .. state
  counts[field] = (counts[field] or 0) + by
end

-- Partitions' keys in which someone's turn may have come.
local scopes, freed = {}, {}
local function free(scope)
  if scope and not scopes[scope] then
    scopes[scope] = true
    freed[#freed + 1] = scope
  end
end

-- Entries of indexes that nothing in the script looks at again are written together, at the end.
local added, removed = {}, {}
local function list_of(lists, name)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  return list
end
local function later_add(name, score, member)
  local list = list_of(added, name)
  list[#list + 1] = score
  list[#list + 1] = member
end
local function later_remove(name, member)
  local list = list_of(removed, name)
  list[#list + 1] = member
end
local function in_parts(command, lists)
  for name, list in pairs(lists) do
    for from = 1, #list, 2000 do call(command, name, unpack(list, from, math.min(from + 1999, #list))) end
  end
end

-- The same for what parents count of their children. A count of zero is no field.
local families = {}
local function count_family(row, what, by)
  local fields, field = list_of(families, P .. 'family:' .. row.parent), row.branch .. ':' .. what
  fields[field] = (fields[field] or 0) + by
end
local function write_families()
  for name, fields in pairs(families) do
    for field, by in pairs(fields) do
      if by ~= 0 and call('HINCRBY', name, field, by) == 0 then call('HDEL', name, field) end
    end
  end
  families = {}
end

local function finish()
  write_families()
  in_parts('ZREM', removed)
  in_parts('ZADD', added)
  for field, by in pairs(counts) do
    if by ~= 0 and call('HINCRBY', P .. 'counts', field, by) == 0 then call('HDEL', P .. 'counts', field) end
  end
end

-- What a child counts as for its parent: as live, as failed, and among those that end with the parent.
local function ends_with_parent(row) return not FINAL[row.state] and not row.detached and not row.cancelling end
local NO_CHILD = { live = 0, failed = 0, ends = false }
local function standing(row)
  if not row.parent then return NO_CHILD end
  return {
    live = FINAL[row.state] and 0 or 1, failed = (row.state == '5' or row.state == '6') and 1 or 0,
    ends = ends_with_parent(row),
  }
end

-- Notes what has changed for the parent.
local function update_family(id, row, before, after)
  if not row.parent then return end
  count_family(row, 'live', after.live - before.live)
  count_family(row, 'failed', after.failed - before.failed)
  if before.ends ~= after.ends then call(after.ends and 'SADD' or 'SREM', P .. 'children:' .. row.parent, id) end
end

-- Earlier is smaller: the most urgent first, then the longest due.
local function turn_score(row) return whole((9 - priority_of(row.lane)) * 100000000000000 + tonumber(row.due)) end

-- Enters a job into the indexes of its state.
local function place(id, row)
  local state = row.state
  if CLAIMABLE[state] then
    call('SADD', P .. 'lanes', row.lane)
    call('ZADD', P .. 'due:' .. row.lane, row.due, id)
    if row.scope and not row.strict then call('ZADD', P .. 'claimable:' .. row.scope, row.due, id) end
  elseif state == '2' then
    call('ZADD', P .. 'leases', row.lease_until, id)
    if row.scope then call('HINCRBY', P .. 'running', row.scope, 1) end
  elseif FINAL[state] then
    call('ZADD', P .. 'ended:' .. state, row.finished, id)
    if state == '5' then call('ZADD', P .. 'dead', 0, id) end
  end
  if row.strict and not FINAL[state] then call('ZADD', P .. 'strict:' .. row.scope, 0, id) end
  if row.awaits then
    call('ZADD', P .. 'awaits', 0, id)
    if row.awaits == 'turn' and not row.strict then call('ZADD', P .. 'turn:' .. row.scope, turn_score(row), id) end
  end
  count(row.lane, state, 1)
end

-- Takes a job out of the indexes of its state.
local function unplace(id, row)
  local state = row.state
  if CLAIMABLE[state] then
    call('ZREM', P .. 'due:' .. row.lane, id)
    if row.scope and not row.strict then call('ZREM', P .. 'claimable:' .. row.scope, id) end
  elseif state == '2' then
    call('ZREM', P .. 'leases', id)
    if row.scope and call('HINCRBY', P .. 'running', row.scope, -1) == 0 then call('HDEL', P .. 'running', row.scope) end
  elseif FINAL[state] then
    call('ZREM', P .. 'ended:' .. state, id)
    if state == '5' then call('ZREM', P .. 'dead', id) end
  end
  if row.strict and not FINAL[state] then call('ZREM', P .. 'strict:' .. row.scope, id) end
  if row.awaits then
    call('ZREM', P .. 'awaits', id)
    if row.awaits == 'turn' and not row.strict then call('ZREM', P .. 'turn:' .. row.scope, id) end
  end
  count(row.lane, state, -1)
end

-- Changes fields of a job; false removes one. Its places move with it.
local function change(id, row, fields)
  local before = standing(row)
  unplace(id, row)
  local set, gone = {}, {}
  for field, value in pairs(fields) do
    if value == false then
      gone[#gone + 1] = field
      row[field] = nil
    else
      set[#set + 1] = field
      set[#set + 1] = value
      row[field] = value
    end
  end
  if #set > 0 then call('HSET', P .. 'job:' .. id, unpack(set)) end
  if #gone > 0 then call('HDEL', P .. 'job:' .. id, unpack(gone)) end
  place(id, row)
  update_family(id, row, before, standing(row))
end

-- Answers for each of the jobs asked for: what `act` says, or that there is no such job.
local function each_job(act)
  local answers = {}
  for n = 1, tonumber(arg()) do
    local id = arg()
    local row = read(id)
    answers[n] = row and act(id, row) or 'missing'
  end
  finish()
  return answers
end

-- A lease that is in force: the epoch shuts out who was taken over, and the claim's own number whoever held the same epoch
-- on a server whose last writes were lost; a job that came from another store has none. Also says whether the job's end was
-- requested.
local function held(id, epoch, claim)
  local row = call('HMGET', P .. 'job:' .. id, 'state', 'epoch', 'claim', 'cancelling')
  return row[1] == '2' and row[2] == epoch and (claim == '' or not row[3] or row[3] == claim), row[4]
end
