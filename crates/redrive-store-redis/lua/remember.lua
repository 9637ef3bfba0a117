-- Remembers steps under leases in force, each once, with their children and the signal they take, or not at all.
-- The oldest signal by this name that nobody took becomes taken; what it said moves to the step.
local function take(id, name)
  for place, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
    local signal, taken, of, value = each:match('^([^\31]*)\31(%d)\31([^\31]*)\31(.*)$')
    if taken == '0' and of == name then
      call('LSET', P .. 'signals:' .. id, place - 1, signal .. '\0311\31' .. of .. '\31')
      return value
    end
  end
end

local function remember_one()
  local id, epoch, claim, place, step, value, takes, children = arg(), arg(), arg(), arg(), arg(), arg(), arg(), tonumber(arg())
  if not held(id, epoch, claim) then
    pass_over(children)
    return 'lost', ''
  end
  local before = call('ZRANGEBYSCORE', P .. 'steps:' .. id, place, place)[1]
  if before then
    pass_over(children)
    return 'before', before
  end
  if takes ~= '' then
    value = take(id, takes)
    if not value then
      pass_over(children)
      return 'nosignal', ''
    end
  end
  step = step .. value
  call('ZADD', P .. 'steps:' .. id, place, step)
  for _ = 1, children do add() end
  return 'kept', step
end

local answers = {}
for _ = 1, tonumber(arg()) do
  local answer, step = remember_one()
  answers[#answers + 1] = answer
  answers[#answers + 1] = step
end
finish()
return answers
