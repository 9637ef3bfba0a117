-- Makes a job due that waited for `awaits`. The start of its time budget moves by the time of the wait.
-- A pause never brings a due time forward. A wait for a slot changes neither the due time nor the budget. With `before_children`, the
-- job becomes due before its own children, which it enqueued after its last attempt had started.
local function make_due(id, row, awaits, before_children)
  local waited = now - row.due
  if awaits == 'unhold' then waited = math.max(0, waited) end
  if awaits == 'turn' then waited = 0 end
  local due = row.due + waited
  if before_children and row.started then due = math.min(due, row.started - 1) end
  change(id, row, {
    due = whole(due), began = whole(row.began + waited), awaits = false,
    state = row.state == '3' and '0' or row.state,
  })
end

-- Reports to the caller that a job waits for a slot, with its order and scope. The caller decides whether a slot is free.
local function slot_wait(row) return 'slot\31' .. (row.strict and 'strict' or 'any') .. '\31' .. row.scope end
