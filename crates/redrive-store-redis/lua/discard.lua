-- Removes dead jobs with all that belongs to them.
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  if not row then
    answers[n] = 'missing'
  elseif row.state ~= '5' then
    answers[n] = row.state
  else
    remove(id, row)
    answers[n] = 'done'
  end
end
finish()
return answers
