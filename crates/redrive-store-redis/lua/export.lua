-- Jobs with all that belongs to them: row, attempts, steps, signals, and the unique key if they hold it.
local parcels = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = call('HGETALL', P .. 'job:' .. id)
  local unique, holder = call('HGET', P .. 'job:' .. id, 'unique'), ''
  if unique then
    holder = call('GET', P .. 'unique:' .. unique) or ''
    if holder:match('^%x+') ~= id then holder = '' end
  end
  parcels[n] = {
    row, call('ZRANGE', P .. 'attempts:' .. id, 0, -1), call('ZRANGE', P .. 'steps:' .. id, 0, -1),
    call('LRANGE', P .. 'signals:' .. id, 0, -1), holder,
  }
end
return parcels
