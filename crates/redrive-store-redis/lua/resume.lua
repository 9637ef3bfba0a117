-- Makes those jobs due, one after the other, for which what they wait for has come. Stops at one that waits for its turn.
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  if not row or not row.awaits then
    answers[n] = 'no'
  elseif row.awaits == 'turn' then
    answers[n] = turn_of(row)
    break
  elseif has_come(id, row) then
    go_on(id, row)
    answers[n] = 'yes'
  else
    answers[n] = 'no'
  end
end
finish()
return answers
