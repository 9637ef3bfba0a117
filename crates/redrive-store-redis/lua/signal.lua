-- Leaves signals for jobs that have not ended; a repeat under the same id leaves nothing.
local function signal_one(id, signal, name, value)
  local state = call('HGET', P .. 'job:' .. id, 'state')
  if not state then return 'missing' end
  if FINAL[state] then return state end
  for _, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
    if each:sub(1, #signal) == signal then return 'kept' end
  end
  call('RPUSH', P .. 'signals:' .. id, signal .. '\0310\31' .. name .. '\31' .. value)
  return 'kept'
end

local answers = {}
for n = 1, tonumber(arg()) do answers[n] = signal_one(arg(), arg(), arg(), arg()) end
return answers
