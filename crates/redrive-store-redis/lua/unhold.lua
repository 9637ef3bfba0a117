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
    local answer = resume_one(id, row)
    answers[n] = (answer == 'yes' or answer == 'no') and call('HGET', P .. 'job:' .. id, 'state') or answer
  end
end
return aftermath(answers)
