-- Takes a signal of a job by its id, and drops its value. Returns false if the signal is gone or was taken before.
local function take_signal(id, signal)
  for place, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
    local of, taken, name = each:match('^([^\31]*)\31(%d)\31([^\31]*)')
    if of == signal then
      if taken == '0' then call('LSET', P .. 'signals:' .. id, place - 1, of .. '\0311\31' .. name .. '\31') end
      return taken == '0'
    end
  end
  return false
end
