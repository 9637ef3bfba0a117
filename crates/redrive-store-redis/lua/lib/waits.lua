-- Resumes a job if its wait condition is met.
local function parts_of(awaits)
  local several = awaits:match('^any:(.*)$')
  if not several then return { awaits } end
  local parts = {}
  for part in several:gmatch('[^\31]+') do parts[#parts + 1] = part end
  return parts
end

local function has_signal(id, names)
  if not next(names) then return false end
  for _, each in ipairs(call('LRANGE', P .. 'signals:' .. id, 0, -1)) do
    local taken, name = each:match('^[^\31]*\31(%d)\31([^\31]*)')
    if taken == '0' and names[name] then return true end
  end
  return false
end

local function family_count(id, branch, what)
  write_families()
  return tonumber(call('HGET', P .. 'family:' .. id, branch .. ':' .. what) or 0)
end

-- Returns whether the wait is over, the fan-outs that it waits for, and those of them in which too many children have failed.
local function check_wait(id, row)
  local over, branches, failed, names = false, {}, {}, {}
  for _, part in ipairs(parts_of(row.awaits)) do
    local name = part:match('^signal:(.*)$')
    local branch, most = part:match('^children:(%d+):(%d+)$')
    if name then
      names[name] = true
    elseif branch then
      branches[#branches + 1] = branch
      local has_failed = family_count(id, branch, 'failed') > tonumber(most)
      if has_failed then failed[#failed + 1] = branch end
      over = over or has_failed or family_count(id, branch, 'live') == 0
    else
      over = not row.held
    end
  end
  return over or has_signal(id, names), branches, failed
end

-- Cancels the other children of fan-outs that have failed. Returns false if some are left, or if slots became free, which the caller
-- has to grant first.
local function cancel_failed(id, failed)
  local before, done = budget, true
  for _, branch in ipairs(failed) do done = cancel_children(id, branch) and done end
  if marked and budget < before then cancel_marked() end
  return done and #freed == 0
end

-- Returns 'yes', 'no', the slot that the job waits for, or 'more': the caller has to ask again.
local function resume_one(id, row)
  local awaits = row.awaits
  if not awaits then return 'no' end
  if awaits == 'turn' then return slot_wait(row) end
  local over, branches, failed = check_wait(id, row)
  if not over then return 'no' end
  if #failed > 0 then
    if not cancel_failed(id, failed) then return 'more' end
    -- A job may be its own descendant, so it may have ended just now.
    row = read(id)
  end
  local before_children = false
  for _, branch in ipairs(branches) do before_children = before_children or family_count(id, branch, 'live') > 0 end
  make_due(id, row, awaits, before_children)
  return 'yes'
end
