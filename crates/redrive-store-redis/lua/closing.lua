-- Ends jobs with everything below them, at most ENDS_MAX in one script. A job below which something is left stands in `closing`,
-- written in the script that ended it, until someone has worked that off.
local ENDS_MAX = 1000
local budget, marked, requested = ENDS_MAX, false, 0

-- What the indexes need to know of a job: never its payload, which may be large.
local function read_placed(id)
  local row = call('HMGET', P .. 'job:' .. id, 'state', 'lane', 'scope', 'strict', 'awaits', 'parent', 'branch', 'detached',
    'cancelling')
  if not row[1] then return nil end
  return {
    state = row[1], lane = row[2], scope = row[3], strict = row[4], awaits = row[5], parent = row[6], branch = row[7],
    detached = row[8], cancelling = row[9],
  }
end

local function mark(id)
  if call('EXISTS', P .. 'children:' .. id) == 1 then
    call('SADD', P .. 'closing', id)
    marked = true
  end
end

-- Ends a job that does not run. Its entries move with those of all others, at the end: nothing in a script looks at them.
local function end_now(id, row)
  call('HSET', P .. 'job:' .. id, 'state', '6', 'finished', NOW)
  if row.awaits then
    call('HDEL', P .. 'job:' .. id, 'awaits')
    later_remove(P .. 'awaits', id)
    if row.awaits == 'turn' and not row.strict then later_remove(P .. 'turn:' .. row.scope, id) end
  end
  if CLAIMABLE[row.state] then
    later_remove(P .. 'due:' .. row.lane, id)
    if row.scope and not row.strict then later_remove(P .. 'claimable:' .. row.scope, id) end
  end
  if row.strict then later_remove(P .. 'strict:' .. row.scope, id) end
  later_add(P .. 'ended:6', NOW, id)
  count(row.lane, row.state, -1)
  count(row.lane, '6', 1)
  if row.parent then
    count_family(row, 'live', -1)
    count_family(row, 'failed', 1)
  end
  free(row.scope)
end

-- Ends a job that has not ended, or requests its end if it runs. Whoever asks takes it off the list of its parent.
local function end_or_request(id, row)
  budget = budget - 1
  if row.state == '2' then
    call('HSET', P .. 'job:' .. id, 'cancelling', '1')
    requested = 1
  else
    end_now(id, row)
  end
  mark(id)
end

-- Ends children of a job as far as the budget goes, those of one fan-out or all; false if some are left.
local function end_children(id, branch)
  local name, done = P .. 'children:' .. id, {}
  local children = branch and call('SMEMBERS', name) or call('SRANDMEMBER', name, budget)
  local next = 1
  while budget > 0 and children[next] do
    local child = children[next]
    local row = read_placed(child)
    if not row or not ends_with_parent(row) then
      -- Earlier versions listed ended children as well.
      budget = budget - 1
      done[#done + 1] = child
    elseif not branch or row.branch == branch then
      end_or_request(child, row)
      done[#done + 1] = child
    end
    next = next + 1
  end
  if #done > 0 then call('SREM', name, unpack(done)) end
  if branch then return not children[next] end
  return call('EXISTS', name) == 0
end

-- A mark counts unless its job has been redriven since: what was removed had ended.
local function counts_still(id)
  local row = call('HMGET', P .. 'job:' .. id, 'state', 'cancelling')
  return not row[1] or row[1] == '5' or row[1] == '6' or row[2]
end

-- Works off marks as far as the budget goes.
local function work_off()
  while budget > 0 do
    local id = call('SRANDMEMBER', P .. 'closing')
    if not id then return end
    budget = budget - 1
    if not counts_still(id) or (budget > 0 and end_children(id)) then call('SREM', P .. 'closing', id) end
  end
end

-- What a script answers that may have ended jobs: the keys it freed, whether it requested the end of a running job, and whether
-- some of what it has to end is left.
local function aftermath(answers)
  finish()
  return { answers, freed, requested, marked and call('EXISTS', P .. 'closing') or 0 }
end
