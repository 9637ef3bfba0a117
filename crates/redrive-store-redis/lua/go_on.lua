-- Makes a job due that waited. The time it has waited moves its budget on; a hold does not bring forward what is due later, and
-- a wait for a turn changes neither its time nor its budget.
local function go_on(id, row)
  local waited = now - row.due
  if row.awaits == 'unhold' then waited = math.max(0, waited) end
  if row.awaits == 'turn' then waited = 0 end
  change(id, row, {
    due = whole(row.due + waited), began = whole(row.began + waited), awaits = false,
    state = row.state == '3' and '0' or row.state,
  })
end

-- Whether what a job waits for is there; whose turn it is takes a look at others.
local function has_come(id, row)
  if row.awaits == 'unhold' then return not row.held end
  local name = row.awaits:match('^signal:(.*)$')
  if name then
    for _, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
      local taken, of = each:match('^[^\31]*\31(%d)\31([^\31]*)')
      if taken == '0' and of == name then return true end
    end
    return false
  end
  local branch, most = row.awaits:match('^children:(%d+):(%d+)$')
  local family = call('HMGET', P .. 'family:' .. id, branch .. ':live', branch .. ':failed')
  return tonumber(family[1] or 0) == 0 or tonumber(family[2] or 0) > tonumber(most)
end

-- That a job waits for its turn, in which order and under which key: whether that has come is decided by who asks.
local function turn_of(row) return 'turn\31' .. (row.strict and 'strict' or 'any') .. '\31' .. row.scope end
