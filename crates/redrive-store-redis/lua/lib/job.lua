-- The start of every script that works on one shard: arguments, clock, and the indexes of a job.
--
-- KEYS[1] is the key prefix of the shard. It contains a hash tag, so all keys of a shard are on one server of a cluster.
-- A job is the hash `job:ID`. Its state is a digit: 0 pending, 1 retrying, 2 running, 3 waiting, 4 succeeded, 5 dead, 6 cancelled.
-- A lane is the text PRIORITY 1f QUEUE 1f KIND. A scope is the text QUEUE 1f PARTITION-KEY, under which jobs share limits.
--
-- Indexes: `ids` and `dead` by id; `due:LANE` by due time; `leases` by end of lease; `ended:STATE` by end; `awaits` by id;
-- `turn:SCOPE` (jobs that wait for a slot) in claim order; `strict:SCOPE` (live jobs in strict order) by id; `claimable:SCOPE`
-- (pending and retrying jobs without strict order) by due time; the hashes `counts` (QUEUE 1f STATE) and `running` (SCOPE).
local P, call = KEYS[1], redis.call
local at = 0
local function arg() at = at + 1 return ARGV[at] end
local function whole(n) return string.format('%.0f', n) end

-- Milliseconds by the server's clock, or by the clock that a test passes as the first argument.
local test_clock = arg()
local now
if test_clock ~= '' then
  now = tonumber(test_clock)
else
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The same as text, formatted once.
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

-- Changes of the counts by queue and state. `finish` writes them once.
local counts = {}
local function count(lane, state, by)
  local field = queue_of(lane) .. '\31' .. state
  counts[field] = (counts[field] or 0) + by
end

-- Scopes in which a slot may have become free. The caller grants the slots.
local scopes, freed = {}, {}
local function free(scope)
  if scope and not scopes[scope] then
    scopes[scope] = true
    freed[#freed + 1] = scope
  end
end

-- Changes of sorted sets that nothing in the script reads again. `finish` writes them in bulk, which is faster.
local added, removed = {}, {}
local function list_of(lists, name)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  return list
end
local function add_later(name, score, member)
  local list = list_of(added, name)
  list[#list + 1] = score
  list[#list + 1] = member
end
local function remove_later(name, member)
  local list = list_of(removed, name)
  list[#list + 1] = member
end
local function write_in_parts(command, lists)
  for name, list in pairs(lists) do
    for from = 1, #list, 2000 do call(command, name, unpack(list, from, math.min(from + 1999, #list))) end
  end
end

-- Changes of the counts that parents keep of their children, in the hash `family:PARENT`. A count of zero has no field.
local families = {}
local function count_child(row, what, by)
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

-- Writes everything that was collected. Every script that changes jobs calls it once, before it returns.
local function finish()
  write_families()
  write_in_parts('ZREM', removed)
  write_in_parts('ZADD', added)
  for field, by in pairs(counts) do
    if by ~= 0 and call('HINCRBY', P .. 'counts', field, by) == 0 then call('HDEL', P .. 'counts', field) end
  end
end

-- How a job counts for its parent: as live, as failed, and as a child that ends when the parent ends.
local function ends_with_parent(row) return not FINAL[row.state] and not row.detached and not row.cancelling end
local NO_CHILD = { live = 0, failed = 0, ends = false }
local function child_counts(row)
  if not row.parent then return NO_CHILD end
  return {
    live = FINAL[row.state] and 0 or 1, failed = (row.state == '5' or row.state == '6') and 1 or 0,
    ends = ends_with_parent(row),
  }
end

-- Updates the parent's counts, and the set `children:PARENT` of the children that end with it.
local function update_parent(id, row, before, after)
  if not row.parent then return end
  count_child(row, 'live', after.live - before.live)
  count_child(row, 'failed', after.failed - before.failed)
  if before.ends ~= after.ends then call(after.ends and 'SADD' or 'SREM', P .. 'children:' .. row.parent, id) end
end

-- The score of a job among those that wait for a slot: higher priority first, then earlier due time.
local function slot_order(row) return whole((9 - priority_of(row.lane)) * 100000000000000 + tonumber(row.due)) end

-- Adds a job to the indexes of its state.
local function index(id, row)
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
    if row.awaits == 'turn' and not row.strict then call('ZADD', P .. 'turn:' .. row.scope, slot_order(row), id) end
  end
  count(row.lane, state, 1)
end

-- Removes a job from the indexes of its state.
local function unindex(id, row)
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

-- Changes fields of a job, and its indexes with them. The value false removes a field.
local function change(id, row, fields)
  local before = child_counts(row)
  unindex(id, row)
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
  index(id, row)
  update_parent(id, row, before, child_counts(row))
end

-- Calls `act` for each job that the arguments name. Returns its answers, or 'missing' where there is no such job.
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

-- Whether a lease is valid. The epoch shuts out a worker whose job was reclaimed. The number of the claim shuts out a worker that
-- held the same epoch on a server that lost its last writes in a failover; a job that was imported has no such number. Also
-- returns whether a cancel was requested.
local function holds_lease(id, epoch, claim)
  local row = call('HMGET', P .. 'job:' .. id, 'state', 'epoch', 'claim', 'cancelling')
  return row[1] == '2' and row[2] == epoch and (claim == '' or not row[3] or row[3] == claim), row[4]
end
