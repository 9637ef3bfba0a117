-- Holds jobs: those that wait for their time are set aside at once, others before their next attempt.
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  if not row then
    answers[n] = 'missing'
  elseif FINAL[row.state] then
    answers[n] = 'ended:' .. row.state
  else
    if CLAIMABLE[row.state] and not row.awaits then
      change(id, row, { held = '1', state = '3', awaits = 'unhold' })
    else
      call('HSET', P .. 'job:' .. id, 'held', '1')
    end
    answers[n] = row.state
  end
end
finish()
return answers
