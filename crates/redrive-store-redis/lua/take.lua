-- Does with jobs that were looked at what was decided about them, unless another holds the lock by now or they have changed.
local token, worker, claim, span = arg(), arg(), arg(), arg()
if call('GET', P .. 'fence') ~= token or call('EXISTS', P .. 'sealed') == 1 then return { whole(now), 'late' } end
for _ = 1, tonumber(arg()) do
  local id, what = arg(), arg()
  local row, flat = read(id)
  if row and CLAIMABLE[row.state] and tonumber(row.due) <= now then
    if what == 'take' then
      lease(id, row, flat, worker, claim, span)
    elseif what == 'aside' then
      change(id, row, { state = '3', awaits = 'turn' })
    else
      change(id, row, { due = what })
    end
  end
end
-- Starts to write down, and how long to keep them.
for _ = 1, tonumber(arg()) do
  local name, added, since = P .. 'starts:' .. arg(), tonumber(arg()), arg()
  call('ZREMRANGEBYSCORE', name, '-inf', since)
  for n = 1, added do call('ZADD', name, NOW, NOW .. ':' .. claim .. ':' .. n) end
end
finish()
return { whole(now), 'taken', leased }
