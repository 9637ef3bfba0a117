-- Remembers steps under leases in force, each once, with their children and the signal they take, or not at all. A job whose end
-- was requested gets no more children.
local function remember_one()
  local id, epoch, claim, place, step, takes, children = arg(), arg(), arg(), arg(), arg(), arg(), tonumber(arg())
  local holds, cancelling = held(id, epoch, claim)
  local before = holds and call('ZRANGEBYSCORE', P .. 'steps:' .. id, place, place)[1]
  local refused
  if not holds then
    refused = 'lost'
  elseif before then
    refused = 'before'
  elseif cancelling and children > 0 then
    refused = 'cancel'
  elseif takes ~= '' and not take(id, takes) then
    refused = 'nosignal'
  end
  if refused then
    pass_over(children)
    return refused, before or ''
  end
  call('ZADD', P .. 'steps:' .. id, place, step)
  for _ = 1, children do add() end
  return 'kept', ''
end

local answers = {}
for _ = 1, tonumber(arg()) do
  local answer, step = remember_one()
  answers[#answers + 1] = answer
  answers[#answers + 1] = step
end
finish()
return answers
