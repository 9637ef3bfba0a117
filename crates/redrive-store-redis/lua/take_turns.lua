-- Makes jobs due whose turn has come; whoever does not wait for one any more stays as it is.
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  if row and row.awaits == 'turn' then
    go_on(id, row, 'turn')
    answers[n] = 1
  else
    answers[n] = 0
  end
end
finish()
return answers
