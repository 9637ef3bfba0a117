-- Makes a job due that waited for `awaits`, if `ahead` before its children, which it enqueued after its last attempt had started.
-- The time it has waited moves its budget on; a hold does not bring forward what is due later, and a wait for a turn changes
-- neither its time nor its budget.
local function go_on(id, row, awaits, ahead)
  local waited = now - row.due
  if awaits == 'unhold' then waited = math.max(0, waited) end
  if awaits == 'turn' then waited = 0 end
  local due = row.due + waited
  if ahead and row.started then due = math.min(due, row.started - 1) end
  change(id, row, {
    due = whole(due), began = whole(row.began + waited), awaits = false,
    state = row.state == '3' and '0' or row.state,
  })
end

-- That a job waits for its turn, in which order and under which key: whether that has come is decided by who asks.
local function turn_of(row) return 'turn\31' .. (row.strict and 'strict' or 'any') .. '\31' .. row.scope end
