-- Leases a job that is due: running, one more attempt, one more epoch, in the same write.
local leased = {}

-- What a lease changes on the row, flat.
local function lease_fields(row, worker, claim, span)
  return {
    'state', '2',
    'attempt', whole((tonumber(row.attempt) or 0) + 1),
    'epoch', whole((tonumber(row.epoch) or 0) + 1),
    'started', whole(now),
    'lease_until', whole(now + (tonumber(row.lease) or tonumber(span))),
    'worker', worker,
    'claim', claim,
  }
end

-- A leased row as it is handed out: what was there, and behind it what has changed.
local function hand_out(id, flat, fields)
  local out = { id }
  for i = 1, #flat, 2 do
    if flat[i] ~= 'awaits' then
      out[#out + 1] = flat[i]
      out[#out + 1] = flat[i + 1]
    end
  end
  for _, value in ipairs(fields) do out[#out + 1] = value end
  leased[#leased + 1] = out
end

local function lease(id, row, flat, worker, claim, span)
  local fields = lease_fields(row, worker, claim, span)
  local changes = { awaits = false }
  for i = 1, #fields, 2 do changes[fields[i]] = fields[i + 1] end
  change(id, row, changes)
  hand_out(id, flat, fields)
end

-- The same for one that no key bounds: its entries move with those of all others, at the end.
local function lease_free(id, row, flat, worker, claim, span)
  local fields = lease_fields(row, worker, claim, span)
  call('HSET', P .. 'job:' .. id, unpack(fields))
  if row.awaits then
    call('HDEL', P .. 'job:' .. id, 'awaits')
    later_remove(P .. 'awaits', id)
  end
  later_remove(P .. 'due:' .. row.lane, id)
  later_add(P .. 'leases', fields[10], id)
  count(row.lane, row.state or '0', -1)
  count(row.lane, '2', 1)
  hand_out(id, flat, fields)
end
