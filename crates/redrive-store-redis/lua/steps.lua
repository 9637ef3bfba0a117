-- Durable jobs: steps, signals, and jobs that wait.

-- name: recall
-- Returns the stored steps of a job in order, from a place on.
{job}
local id, from, limit = arg(), arg(), tonumber(arg())
return call('ZRANGEBYSCORE', P .. 'steps:' .. id, from, '+inf', 'LIMIT', 0, limit)

-- name: remember
-- Stores steps under valid leases, each once, together with the child jobs and the signal that the step takes; all or nothing.
-- A job whose cancel was requested gets no more children.
{job} {add} {take_signal}
local function remember_one()
  local id, epoch, claim, place, step, takes, children = arg(), arg(), arg(), arg(), arg(), arg(), tonumber(arg())
  local holds, cancelling = holds_lease(id, epoch, claim)
  local before = holds and call('ZRANGEBYSCORE', P .. 'steps:' .. id, place, place)[1]
  local refused
  if not holds then
    refused = 'lost'
  elseif before then
    refused = 'before'
  elseif cancelling and children > 0 then
    refused = 'cancel'
  elseif takes ~= '' and not take_signal(id, takes) then
    refused = 'nosignal'
  end
  if refused then
    skip_jobs(children)
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

-- name: forget
-- Deletes the steps of dead jobs.
{job}
return each_job(function(id, row)
  if row.state ~= '5' then return row.state end
  call('DEL', P .. 'steps:' .. id)
  return 'done'
end)

-- name: signal
-- Stores signals for jobs that have not ended. Repeating a signal with the same id changes nothing.
{job}
local function signal_one(id, signal, name, value)
  local state = call('HGET', P .. 'job:' .. id, 'state')
  if not state then return 'missing' end
  if FINAL[state] then return state end
  for _, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
    if each:sub(1, #signal) == signal then return 'kept' end
  end
  call('RPUSH', P .. 'signals:' .. id, signal .. '\0310\31' .. name .. '\31' .. value)
  return 'kept'
end

local answers = {}
for n = 1, tonumber(arg()) do answers[n] = signal_one(arg(), arg(), arg(), arg()) end
return answers

-- name: pending_signals
-- Returns the signals with these names that no step has taken, in the order of their arrival.
{job}
local id, limit, names, pending = arg(), tonumber(arg()), {}, {}
for _ = 1, tonumber(arg()) do names[arg()] = true end
for _, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
  if #pending == limit then break end
  local taken, name = each:match('^[^\31]*\31(%d)\31([^\31]*)')
  if taken == '0' and names[name] then pending[#pending + 1] = each end
end
return pending

-- name: skip_signals
-- Takes signals without storing a step, under a valid lease. Under a lost lease it changes nothing.
{job} {take_signal}
local id, epoch, claim = arg(), arg(), arg()
if not holds_lease(id, epoch, claim) then return 0 end
for _ = 1, tonumber(arg()) do take_signal(id, arg()) end
return 1

-- name: waiting
-- Returns waiting jobs in the order of their ids after `after`, and whether descendants of ended jobs are left to cancel.
{job}
local after, limit = arg(), tonumber(arg())
local waiting = call('ZRANGEBYLEX', P .. 'awaits', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
return { waiting, call('EXISTS', P .. 'closing') }

-- name: resume
-- Makes those jobs due whose wait is over. First cancels the other children of a fan-out that has failed.
-- Stops after a job that waits for a slot, and before a job that the caller has to ask about again.
{job} {job_tree} {make_due} {waits}
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  answers[n] = row and resume_one(id, row) or 'no'
  if answers[n] ~= 'yes' and answers[n] ~= 'no' then break end
end
return reply_with_follow_up(answers)
