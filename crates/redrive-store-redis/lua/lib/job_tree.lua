-- Cancels jobs and their descendants, at most ENDS_MAX in one script, so that no script blocks the server for long.
-- A job whose descendants have not all ended is marked in the set `closing`, in the same script that ended the job. The caller runs
-- `cancel_descendants` until no mark is left; after a crash the sweep does it.
local ENDS_MAX = 1000
local budget, marked, requested = ENDS_MAX, false, 0

-- Reads the fields that the indexes need. Never reads the payload, which may be large.
local function read_indexed(id)
  local row = call('HMGET', P .. 'job:' .. id, 'state', 'lane', 'scope', 'strict', 'awaits', 'parent', 'branch', 'detached',
    'cancelling')
  if not row[1] then return nil end
  return {
    state = row[1], lane = row[2], scope = row[3], strict = row[4], awaits = row[5], parent = row[6], branch = row[7],
    detached = row[8], cancelling = row[9],
  }
end

local function mark_if_parent(id)
  if call('EXISTS', P .. 'children:' .. id) == 1 then
    call('SADD', P .. 'closing', id)
    marked = true
  end
end

-- Cancels a job that does not run. Its index entries are written at the end, because nothing in the script reads them.
local function cancel_now(id, row)
  call('HSET', P .. 'job:' .. id, 'state', '6', 'finished', NOW)
  if row.awaits then
    call('HDEL', P .. 'job:' .. id, 'awaits')
    remove_later(P .. 'awaits', id)
    if row.awaits == 'turn' and not row.strict then remove_later(P .. 'turn:' .. row.scope, id) end
  end
  if CLAIMABLE[row.state] then
    remove_later(P .. 'due:' .. row.lane, id)
    if row.scope and not row.strict then remove_later(P .. 'claimable:' .. row.scope, id) end
  end
  if row.strict then remove_later(P .. 'strict:' .. row.scope, id) end
  add_later(P .. 'ended:6', NOW, id)
  count(row.lane, row.state, -1)
  count(row.lane, '6', 1)
  if row.parent then
    count_child(row, 'live', -1)
    count_child(row, 'failed', 1)
  end
  free(row.scope)
end

-- Cancels a job that has not ended, or requests its cancel if it runs. The caller removes it from the set of its parent.
local function cancel_or_request(id, row)
  budget = budget - 1
  if row.state == '2' then
    call('HSET', P .. 'job:' .. id, 'cancelling', '1')
    requested = 1
  else
    cancel_now(id, row)
  end
  mark_if_parent(id)
end

-- Cancels the children of a job, of one fan-out or of all, within the budget. Returns false if some are left.
local function cancel_children(id, branch)
  local name, done = P .. 'children:' .. id, {}
  local children = branch and call('SMEMBERS', name) or call('SRANDMEMBER', name, budget)
  local next = 1
  while budget > 0 and children[next] do
    local child = children[next]
    local row = read_indexed(child)
    if not row or not ends_with_parent(row) then
      -- Earlier versions also listed children that had ended.
      budget = budget - 1
      done[#done + 1] = child
    elseif not branch or row.branch == branch then
      cancel_or_request(child, row)
      done[#done + 1] = child
    end
    next = next + 1
  end
  if #done > 0 then call('SREM', name, unpack(done)) end
  if branch then return not children[next] end
  return call('EXISTS', name) == 0
end

-- A mark is obsolete if its job was redriven since. A job that was removed had ended, so its mark is valid.
local function is_mark_valid(id)
  local row = call('HMGET', P .. 'job:' .. id, 'state', 'cancelling')
  return not row[1] or row[1] == '5' or row[1] == '6' or row[2]
end

-- Cancels descendants of marked jobs, within the budget.
local function cancel_marked()
  while budget > 0 do
    local id = call('SRANDMEMBER', P .. 'closing')
    if not id then return end
    budget = budget - 1
    if not is_mark_valid(id) or (budget > 0 and cancel_children(id)) then call('SREM', P .. 'closing', id) end
  end
end

-- The reply of a script that may have ended jobs: its answers, the scopes with a free slot, whether it requested the cancel of a
-- running job, and whether marked jobs are left. `FollowUp` in job_tree.rs reads it.
local function reply_with_follow_up(answers)
  finish()
  return { answers, freed, requested, marked and call('EXISTS', P .. 'closing') or 0 }
end
