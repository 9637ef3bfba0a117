-- Signals of a job by these names that nobody took, in the order in which they came.
local id, limit, names, pending = arg(), tonumber(arg()), {}, {}
for _ = 1, tonumber(arg()) do names[arg()] = true end
for _, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
  if #pending == limit then break end
  local taken, name = each:match('^[^\31]*\31(%d)\31([^\31]*)')
  if taken == '0' and names[name] then pending[#pending + 1] = each end
end
return pending
