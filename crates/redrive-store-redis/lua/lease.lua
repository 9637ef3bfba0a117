-- Leases jobs that are due: running, one more attempt, one more epoch, in the same write.
local leased = {}
local function lease(id, row, worker, claim, span)
  local fields = {
    'state', '2',
    'attempt', whole((tonumber(row.attempt) or 0) + 1),
    'epoch', whole((tonumber(row.epoch) or 0) + 1),
    'started', whole(now),
    'lease_until', whole(now + (tonumber(row.lease) or tonumber(span))),
    'worker', worker,
    'claim', claim,
  }
  unplace(id, row)
  call('HSET', P .. 'job:' .. id, unpack(fields))
  for i = 1, #fields, 2 do row[fields[i]] = fields[i + 1] end
  if row.awaits then
    call('HDEL', P .. 'job:' .. id, 'awaits')
    row.awaits = nil
  end
  place(id, row)
  local flat = { id }
  for field, value in pairs(row) do
    flat[#flat + 1] = field
    flat[#flat + 1] = value
  end
  leased[#leased + 1] = flat
end
