-- Leases a due job: the state becomes running, and attempt and epoch grow by one, in the same write.
local leased = {}

local function plus_one(n)
  if not n then return '1' end
  return whole((tonumber(n) or 0) + 1)
end

-- As redrive_core::next_epoch: the low 16 bits count the leases, and stay at their maximum.
local function next_epoch(epoch)
  local n = tonumber(epoch) or 0
  return n % 65536 == 65535 and whole(n + 65536) or plus_one(epoch)
end

-- Adds a job to the reply: its row before the lease, and the fields that changed and differ between jobs.
local function add_to_reply(id, flat, attempt, epoch, lease_until)
  local n = #leased
  leased[n + 1], leased[n + 2], leased[n + 3], leased[n + 4], leased[n + 5] = id, flat, attempt, epoch, lease_until
end

local function lease(id, row, flat, worker, claim, span)
  local attempt, epoch = plus_one(row.attempt), next_epoch(row.epoch)
  local lease_until = whole(now + (tonumber(row.lease) or tonumber(span)))
  change(id, row, {
    state = '2', attempt = attempt, epoch = epoch, started = NOW, lease_until = lease_until, worker = worker, claim = claim,
    awaits = false,
  })
  add_to_reply(id, flat, attempt, epoch, lease_until)
end

-- The same for a job without a partition key, with fewer commands. Returns false, and changes nothing, if the job has a key.
local FIELDS = { attempt = true, epoch = true, lease = true, scope = true, awaits = true, state = true }
local function lease_without_key(id, lane, worker, claim, span)
  local flat = call('HGETALL', P .. 'job:' .. id)
  local row = {}
  for i = 1, #flat, 2 do
    if FIELDS[flat[i]] then row[flat[i]] = flat[i + 1] end
  end
  if row.scope then return false end
  local attempt, epoch, lease_until = plus_one(row.attempt), next_epoch(row.epoch), span
  if row.lease then lease_until = whole(now + (tonumber(row.lease) or 0)) end
  call('HSET', P .. 'job:' .. id, 'state', '2', 'attempt', attempt, 'epoch', epoch, 'started', NOW,
    'lease_until', lease_until, 'worker', worker, 'claim', claim)
  -- The row is damaged. Keep the lane in which it was found, so that it can be settled.
  if #flat == 0 then call('HSET', P .. 'job:' .. id, 'lane', lane) end
  if row.awaits then
    call('HDEL', P .. 'job:' .. id, 'awaits')
    remove_later(P .. 'awaits', id)
  end
  remove_later(P .. 'due:' .. lane, id)
  add_later(P .. 'leases', lease_until, id)
  count(lane, row.state or '0', -1)
  count(lane, '2', 1)
  add_to_reply(id, flat, attempt, epoch, lease_until)
  return true
end
