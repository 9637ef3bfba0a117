-- Leases a job that is due: running, one more attempt, one more epoch, in the same write.
local leased = {}

local function one_more(n)
  if not n then return '1' end
  return whole((tonumber(n) or 0) + 1)
end

-- A leased row as it is handed out: what was there, and what has changed but for what is the same for all.
local function hand_out(id, flat, attempt, epoch, lease_until)
  local n = #leased
  leased[n + 1], leased[n + 2], leased[n + 3], leased[n + 4], leased[n + 5] = id, flat, attempt, epoch, lease_until
end

local function lease(id, row, flat, worker, claim, span)
  local attempt, epoch = one_more(row.attempt), one_more(row.epoch)
  local lease_until = whole(now + (tonumber(row.lease) or tonumber(span)))
  change(id, row, {
    state = '2', attempt = attempt, epoch = epoch, started = NOW, lease_until = lease_until, worker = worker, claim = claim,
    awaits = false,
  })
  hand_out(id, flat, attempt, epoch, lease_until)
end

-- The same for one that no key bounds: its entries move with those of all others, at the end.
local LOOKED_AT = { attempt = true, epoch = true, lease = true, scope = true, awaits = true, state = true }
local function lease_free(id, lane, worker, claim, span)
  local flat = call('HGETALL', P .. 'job:' .. id)
  local row = {}
  for i = 1, #flat, 2 do
    if LOOKED_AT[flat[i]] then row[flat[i]] = flat[i + 1] end
  end
  if row.scope then return false end
  local attempt, epoch, lease_until = one_more(row.attempt), one_more(row.epoch), span
  if row.lease then lease_until = whole(now + (tonumber(row.lease) or 0)) end
  call('HSET', P .. 'job:' .. id, 'state', '2', 'attempt', attempt, 'epoch', epoch, 'started', NOW,
    'lease_until', lease_until, 'worker', worker, 'claim', claim)
  -- Whatever is damaged, it was found here.
  if #flat == 0 then call('HSET', P .. 'job:' .. id, 'lane', lane) end
  if row.awaits then
    call('HDEL', P .. 'job:' .. id, 'awaits')
    later_remove(P .. 'awaits', id)
  end
  later_remove(P .. 'due:' .. lane, id)
  later_add(P .. 'leases', lease_until, id)
  count(lane, row.state or '0', -1)
  count(lane, '2', 1)
  hand_out(id, flat, attempt, epoch, lease_until)
  return true
end
