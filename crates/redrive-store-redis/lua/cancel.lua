-- Ends jobs that do not run and requests the end of those that do, then of everything below one that had not ended. The answers
-- say how each stood before anything below the others was ended.
local function cancel_one(id)
  local row = read_placed(id)
  if not row then return 'missing' end
  if FINAL[row.state] then return row.state end
  local answer = row.state == '2' and 'requested' or 'done'
  end_or_request(id, row)
  if row.parent then call('SREM', P .. 'children:' .. row.parent, id) end
  return answer
end

local answers = {}
for n = 1, tonumber(arg()) do answers[n] = cancel_one(arg()) end
if marked then work_off() end
return aftermath(answers)
