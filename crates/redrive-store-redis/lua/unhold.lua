-- Lets jobs go on that were held.
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  if not row then
    answers[n] = 'missing'
  elseif FINAL[row.state] then
    answers[n] = 'ended:' .. row.state
  else
    call('HDEL', P .. 'job:' .. id, 'held')
    row.held = nil
    if row.awaits == 'turn' then
      answers[n] = 'turn\31' .. row.scope
    else
      if row.awaits and has_come(id, row) then go_on(id, row) end
      answers[n] = row.state
    end
  end
end
finish()
return answers
