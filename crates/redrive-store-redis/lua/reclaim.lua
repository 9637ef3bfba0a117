-- Takes over leases that have run out, longest ago first, under a new epoch and without charging an attempt, but none that the
-- caller holds. The lost worker's name stays. Looks at a batch at most, after the first `skip`; answers how many it looked at.
local limit, claim, span, skip = tonumber(arg()), arg(), arg(), tonumber(arg())
local kinds, any = {}, true
for _ = 1, tonumber(arg()) do
  kinds[arg()] = true
  any = false
end
local own = {}
for _ = 1, tonumber(arg()) do
  local lease = arg() .. ':' .. arg()
  own[lease] = arg()
end
-- By the same rule as `held`.
local function is_own(id, row)
  local claim = own[id .. ':' .. (row.epoch or '')]
  return claim and (claim == '' or not row.claim or row.claim == claim)
end
local expired = call('ZRANGEBYSCORE', P .. 'leases', '-inf', whole(now), 'LIMIT', skip, 1000)
local taken, passed = 0, 0
if call('EXISTS', P .. 'sealed') == 1 then expired = {} end
for _, id in ipairs(expired) do
  if taken == limit then break end
  local row, flat = read(id)
  if not is_own(id, row) and (any or kinds[row.lane:match('\31([^\31]*)$')]) then
    local epoch, lease_until = one_more(row.epoch), whole(now + tonumber(span))
    change(id, row, { epoch = epoch, lease_until = lease_until, claim = claim })
    hand_out(id, flat, row.attempt or '0', epoch, lease_until)
    taken = taken + 1
  else
    passed = passed + 1
  end
end
finish()
return { NOW, leased, passed, #expired }
