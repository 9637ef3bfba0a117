-- Adds a job. A job with the same id, idempotency key or unique key is not added again.
-- Returns 'created', 'existing', 'conflict' or 'replaced', and the id of the job that is now stored.

-- Finds the job with an idempotency key: 'existing' if its fingerprint is the same, else 'conflict'.
local function key_holder(tenant, key, print)
  local known = call('GET', P .. 'key:' .. tenant .. '\31' .. key)
  if not known then return nil end
  local id, known_print = known:match('^(%x+):(.*)$')
  return known_print == print and 'existing' or 'conflict', id
end

local lanes_known = {}

local function due_at(start)
  local how, value = start:sub(1, 1), start:sub(2)
  if how == 'n' then return NOW end
  if how == 'a' then return whole(now + tonumber(value)) end
  return value
end

-- Replaces the input of a job that has never been claimed.
local function replace(id, row, new, due)
  local fields = { policy = new.policy, payload = new.payload, due = due, began = due }
  for _, field in ipairs({ 'subject', 'metadata', 'timeout', 'lease' }) do fields[field] = new[field] or false end
  change(id, row, fields)
end

-- Applies the rule of a unique key: returns an answer if the job that holds the key keeps `new` from being added.
local function unique_holder(name, new, due)
  local holder = call('GET', name)
  if not holder then return nil end
  local id, till = holder:match('^(%x+):(%d*)$')
  local row = read(id)
  local live = row and not FINAL[row.state]
  if new.rule == 'live' then return live and 'existing' or nil, id end
  if new.rule == 'for' then
    if till ~= '' then live = tonumber(till) > now end
    return live and 'existing' or nil, id
  end
  if not row or row.state ~= '0' or row.epoch then return nil end
  replace(id, row, new, due)
  return 'replaced', id
end

-- Skips the arguments of jobs that are not added.
local function skip_jobs(jobs)
  for _ = 1, jobs do
    at = at + 6
    local extras = tonumber(arg())
    at = at + 2 * extras
  end
end

-- Indexes a job that nothing else in the script reads.
local function index_plain(id, lane, due)
  if not lanes_known[lane] then
    lanes_known[lane] = true
    call('SADD', P .. 'lanes', lane)
  end
  add_later(P .. 'due:' .. lane, due, id)
  add_later(P .. 'ids', 0, id)
  count(lane, '0', 1)
end

local function write(id, row)
  local set = {}
  for field, value in pairs(row) do
    set[#set + 1] = field
    set[#set + 1] = value
  end
  call('HSET', P .. 'job:' .. id, unpack(set))
end

local function add()
  local id, lane, tenant, policy, payload, due, extras =
    ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], due_at(ARGV[at + 6]), ARGV[at + 7]
  at = at + 7
  if call('EXISTS', P .. 'job:' .. id) == 1 then
    at = at + 2 * tonumber(extras)
    return 'existing', id
  end
  if extras == '0' then
    -- The common case: no keys, no parent.
    call('HSET', P .. 'job:' .. id, 'state', '0', 'lane', lane, 'tenant', tenant, 'policy', policy, 'payload', payload,
      'created', NOW, 'began', due, 'due', due)
    index_plain(id, lane, due)
    return 'created', id
  end
  local row = { state = '0', lane = lane, tenant = tenant, policy = policy, payload = payload }
  for _ = 1, tonumber(extras) do
    local field = arg()
    row[field] = arg()
  end
  if row.key then
    local answer, other = key_holder(row.tenant, row.key, row.print)
    if answer then return answer, other end
    call('SET', P .. 'key:' .. row.tenant .. '\31' .. row.key, id .. ':' .. row.print)
  end
  if row.unique then
    local name = P .. 'unique:' .. row.unique
    local answer, other = unique_holder(name, row, due)
    if answer then return answer, other end
    call('SET', name, id .. ':' .. (row.span and whole(now + tonumber(row.span)) or ''))
    row.rule, row.span = nil, nil
  end
  row.created, row.began, row.due = NOW, due, due
  write(id, row)
  if not (row.unique or row.scope or row.parent) then
    index_plain(id, lane, due)
    return 'created', id
  end
  call('ZADD', P .. 'ids', 0, id)
  index(id, row)
  update_parent(id, row, NO_CHILD, child_counts(row))
  return 'created', id
end
