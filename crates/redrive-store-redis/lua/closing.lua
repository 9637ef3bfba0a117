-- Ends jobs with everything below them, at most ENDS_MAX in one script. A job below which something is left stands in `closing`,
-- written in the script that ended it, until someone has worked that off.
local ENDS_MAX = 1000
local budget, marked, requested = ENDS_MAX, false, 0

-- What the indexes need to know of a job: never its payload, which may be large.
local PLACED = { 'state', 'lane', 'due', 'scope', 'strict', 'awaits', 'parent', 'branch', 'detached', 'cancelling', 'lease_until' }
local function read_placed(id)
  local values = call('HMGET', P .. 'job:' .. id, unpack(PLACED))
  if not values[1] then return nil end
  local row = {}
  for n, field in ipairs(PLACED) do row[field] = values[n] or nil end
  return row
end

local function mark(id)
  if call('EXISTS', P .. 'children:' .. id) == 1 then
    call('SADD', P .. 'closing', id)
    marked = true
  end
end

-- Ends a job that has not ended, or requests its end if it runs.
local function end_or_request(id, row)
  budget = budget - 1
  if row.state == '2' then
    local before = standing(row)
    call('HSET', P .. 'job:' .. id, 'cancelling', '1')
    row.cancelling, requested = '1', 1
    update_family(id, row, before, standing(row))
  else
    change(id, row, { state = '6', finished = NOW, awaits = false })
    free(row.scope)
  end
  mark(id)
end

-- Ends children of a job as far as the budget goes, those of one fan-out or all; false if some are left.
local function end_children(id, branch)
  local name = P .. 'children:' .. id
  local children = branch and call('SMEMBERS', name) or call('SRANDMEMBER', name, budget)
  for _, child in ipairs(children) do
    if budget <= 0 then return false end
    local row = read_placed(child)
    if not row or not standing(row).ends then
      -- Earlier versions listed ended children as well.
      call('SREM', name, child)
      budget = budget - 1
    elseif not branch or row.branch == branch then
      end_or_request(child, row)
    end
  end
  return branch ~= nil or call('EXISTS', name) == 0
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
