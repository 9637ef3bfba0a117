-- Actions of operators on single jobs.

-- name: cancel
-- Cancels jobs that do not run, requests the cancel of those that do, and then does the same to their descendants.
-- The answers report the state of each job before descendants of other jobs in the list were cancelled.
{job} {job_tree}
local function cancel_one(id)
  local row = read_indexed(id)
  if not row then return 'missing' end
  if FINAL[row.state] then return row.state end
  local answer = row.state == '2' and 'requested' or 'done'
  cancel_or_request(id, row)
  if row.parent then call('SREM', P .. 'children:' .. row.parent, id) end
  return answer
end

local answers = {}
for n = 1, tonumber(arg()) do answers[n] = cancel_one(arg()) end
if marked then cancel_marked() end
return reply_with_follow_up(answers)

-- name: cancel_descendants
-- Continues to cancel the descendants of jobs that have ended.
{job} {job_tree}
marked = true
cancel_marked()
return reply_with_follow_up({})

-- name: redrive
-- Gives dead jobs a new run that is due at once. Of two concurrent calls, one succeeds.
{job}
return each_job(function(id, row)
  if row.state ~= '5' then return row.state end
  change(id, row, {
    state = '0', run = whole((row.run or 1) + 1), attempt = false, began = NOW, due = NOW,
    wait = false, reason = false, output = false, finished = false, cancelling = false,
  })
  return 'done'
end)

-- name: run_now
-- Makes pending and retrying jobs due now.
{job}
return each_job(function(id, row)
  if not CLAIMABLE[row.state] then return row.state end
  change(id, row, { due = whole(math.min(row.due, now)), began = whole(math.min(row.began, now)) })
  return 'done'
end)

-- name: discard
-- Removes dead jobs with everything that belongs to them.
{job} {remove}
return each_job(function(id, row)
  if row.state ~= '5' then return row.state end
  remove(id, row)
  return 'done'
end)

-- name: pause
-- Pauses jobs. A job that waits for its due time stops at once; a running one stops before its next attempt.
{job}
return each_job(function(id, row)
  if FINAL[row.state] then return 'ended:' .. row.state end
  if CLAIMABLE[row.state] and not row.awaits then
    change(id, row, { held = '1', state = '3', awaits = 'unhold' })
  else
    call('HSET', P .. 'job:' .. id, 'held', '1')
  end
  return row.state
end)

-- name: unpause
-- Ends the pause of jobs, and resumes those that wait for nothing else.
{job} {job_tree} {make_due} {waits}
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
return reply_with_follow_up(answers)
