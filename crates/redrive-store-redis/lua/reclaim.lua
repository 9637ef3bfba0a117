-- Takes over leases that have run out, longest ago first, under a new epoch and without charging an attempt. Looks at a batch
-- at most, after the first `skip`; answers how many it looked at.
local limit, worker, claim, span, skip = tonumber(arg()), arg(), arg(), arg(), tonumber(arg())
local kinds, any = {}, true
for _ = 1, tonumber(arg()) do
  kinds[arg()] = true
  any = false
end
local expired = call('ZRANGEBYSCORE', P .. 'leases', '-inf', whole(now), 'LIMIT', skip, 1000)
local taken, passed = {}, 0
if call('EXISTS', P .. 'sealed') == 1 then expired = {} end
for _, id in ipairs(expired) do
  if #taken == limit then break end
  local row = read(id)
  if any or kinds[row.lane:match('\31([^\31]*)$')] then
    change(id, row, {
      epoch = whole(row.epoch + 1), lease_until = whole(now + tonumber(span)), worker = worker, claim = claim,
    })
    local flat = { id }
    for field, value in pairs(row) do
      flat[#flat + 1] = field
      flat[#flat + 1] = value
    end
    taken[#taken + 1] = flat
  else
    passed = passed + 1
  end
end
finish()
return { whole(now), taken, passed, #expired }
