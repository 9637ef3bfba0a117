-- Forgets the steps of dead jobs.
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local state = call('HGET', P .. 'job:' .. id, 'state')
  if not state then
    answers[n] = 'missing'
  elseif state ~= '5' then
    answers[n] = state
  else
    call('DEL', P .. 'steps:' .. id)
    answers[n] = 'done'
  end
end
return answers
