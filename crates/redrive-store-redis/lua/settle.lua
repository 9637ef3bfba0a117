-- Applies verdicts under leases that are in force, with their log entries and follow-ups; under a lost one it changes nothing. A
-- job that ends as dead or cancelled ends everything below it.
local kept = tonumber(arg())

local function note(id, row, entry, wait)
  local goes_on = CLAIMABLE[row.state]
  local member = table.concat({ row.epoch, row.worker or '', row.state, goes_on and wait or '', goes_on and row.due or '', entry }, '\31')
  call('ZADD', P .. 'attempts:' .. id, row.epoch, member)
  -- The oldest go when there are too many.
  call('ZREMRANGEBYRANK', P .. 'attempts:' .. id, 0, -kept - 1)
end

local function settle_one()
  local id, epoch, claim = arg(), arg(), arg()
  local state, cancelling, wait, refund, pause = arg(), arg(), arg(), tonumber(arg()), tonumber(arg())
  local fields = {}
  local entry
  for _ = 1, tonumber(arg()) do
    local field = arg()
    if field == 'entry' then entry = arg() else fields[field] = arg() end
  end
  local follow_ups = tonumber(arg())
  if not held(id, epoch, claim) then
    pass_over(follow_ups)
    return 'lost'
  end
  local row = read(id)
  if row.cancelling then state = cancelling end
  local final = FINAL[state]
  fields.state = state
  if refund > 0 then fields.attempt = whole(math.max(0, row.attempt - refund)) end
  if pause > 0 then fields.began = whole(row.began + pause) end
  if final then
    fields.finished = whole(now)
    fields.awaits = false
  else
    fields.due = whole(now + tonumber(wait == '' and 0 or wait))
    fields.awaits = fields.awaits or false
  end
  if not CLAIMABLE[state] then fields.wait = nil end
  change(id, row, fields)
  if entry then note(id, row, entry, wait) end
  free(row.scope)
  if state == '5' or state == '6' then
    mark(id)
    if marked then work_off() end
  end
  for _ = 1, follow_ups do add() end
  return state
end

local answers = {}
for _ = 1, tonumber(arg()) do answers[#answers + 1] = settle_one() end
return aftermath(answers)
