-- The life of a job: enqueue, claim, settle, extend, reclaim, prune.
-- Each script works on one shard and is atomic.

-- name: enqueue
-- Adds jobs, each at most once. Repeating a call whose reply was lost changes nothing.
{job} {add}
local answers = {}
for _ = 1, tonumber(arg()) do
  local answer, id = add()
  answers[#answers + 1] = answer
  answers[#answers + 1] = id
end
finish()
return answers

-- name: find
-- Reads what an enqueue of each job would find: a job with the same id or idempotency key. Changes nothing.
{job} {add}
local answers = {}
for _ = 1, tonumber(arg()) do
  local id, tenant, key, print = arg(), arg(), arg(), arg()
  local answer, other
  if call('EXISTS', P .. 'job:' .. id) == 1 then
    answer, other = 'existing', id
  elseif key ~= '' then
    answer, other = key_holder(tenant, key, print)
  end
  answers[#answers + 1] = answer or 'free'
  answers[#answers + 1] = other or ''
end
return answers

-- name: lane_heads
-- Returns each lane with the due time of its first job, so that the caller can choose lanes. Reads one job per lane, and drops
-- empty lanes.
{job}
local heads = {}
for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
  local first = call('ZRANGE', P .. 'due:' .. lane, 0, 0, 'WITHSCORES')
  if #first == 0 then
    call('SREM', P .. 'lanes', lane)
  else
    heads[#heads + 1] = lane
    heads[#heads + 1] = first[2]
  end
end
return { whole(now), heads }

-- name: claim
-- Leases due jobs of the lanes in claim order, and returns when the next job of each lane is due.
-- Stops before a job with a partition key: its limits and its order depend on other jobs, which `limits.lua` reads.
{job} {walk} {lease}
local limit, worker, claim, span = tonumber(arg()), arg(), arg(), arg()
local lease_until = whole(now + tonumber(span))
local limited, taken = 0, 0
if call('EXISTS', P .. 'sealed') == 1 then limit = 0 end
local asked = lanes_by_priority()
for _, lanes in ipairs(asked) do
  local next_due = walk(lanes, limit - taken)
  while taken < limit and limited == 0 do
    local id, lane = next_due()
    if not id then break end
    if lease_without_key(id, lane, worker, claim, lease_until) then taken = taken + 1 else limited = 1 end
  end
  if taken == limit or limited == 1 then break end
end
finish()
return { NOW, limited, leased, lane_heads(asked) }

-- name: settle
-- Applies verdicts under valid leases, logs the attempts and adds the follow-up jobs. Under a lost lease it changes
-- nothing. The end of a dead or cancelled job also ends its descendants.
{job} {add} {job_tree}
local kept = tonumber(arg())

local function log_attempt(id, row, entry, wait)
  local continues = CLAIMABLE[row.state]
  local member = table.concat({ row.epoch, row.worker or '', row.state, continues and wait or '', continues and row.due or '', entry }, '\31')
  call('ZADD', P .. 'attempts:' .. id, row.epoch, member)
  -- Keeps the last `kept` entries.
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
  if not holds_lease(id, epoch, claim) then
    skip_jobs(follow_ups)
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
  if entry then log_attempt(id, row, entry, wait) end
  free(row.scope)
  if state == '5' or state == '6' then
    mark_if_parent(id)
    if marked then cancel_marked() end
  end
  for _ = 1, follow_ups do add() end
  return state
end

local answers = {}
for _ = 1, tonumber(arg()) do answers[#answers + 1] = settle_one() end
return reply_with_follow_up(answers)

-- name: settle_successes
-- Settles successes without output, log entry or follow-ups, the most frequent case. Under a lost lease it changes nothing.
{job}
local answers = {}
for n = 1, tonumber(arg()) do
  local id, epoch, claim = arg(), arg(), arg()
  local name = P .. 'job:' .. id
  local row = call('HMGET', name, 'state', 'epoch', 'claim', 'lane', 'scope', 'parent')
  if row[1] ~= '2' or row[2] ~= epoch or (claim ~= '' and row[3] and row[3] ~= claim) then
    answers[n] = 0
  elseif row[5] or row[6] then
    change(id, read(id), { state = '4', finished = NOW })
    free(row[5])
    answers[n] = 1
  else
    call('HSET', name, 'state', '4', 'finished', NOW)
    count(row[4], '2', -1)
    count(row[4], '4', 1)
    remove_later(P .. 'leases', id)
    add_later(P .. 'ended:4', NOW, id)
    answers[n] = 1
  end
end
finish()
return { answers, freed, 0, 0 }

-- name: extend
-- Renews valid leases, also expired ones that nobody has reclaimed. Reports jobs whose cancel was requested.
{job}
local span, answers = tonumber(arg()), {}
for n = 1, tonumber(arg()) do
  local id, epoch, claim = arg(), arg(), arg()
  local holds, cancelling = holds_lease(id, epoch, claim)
  if not holds then
    answers[n] = 'lost'
  else
    call('HSET', P .. 'job:' .. id, 'lease_until', whole(now + span))
    call('ZADD', P .. 'leases', whole(now + span), id)
    answers[n] = cancelling and 'cancel' or 'renewed'
  end
end
return answers

-- name: reclaim
-- Takes over expired leases, longest expired first, under a new epoch and without charging an attempt. Skips the caller's own
-- leases. The name of the lost worker stays on the job. Reads at most 1,000 leases after the first `skip`, and returns how
-- many it read and how many of them it skipped.
{job} {lease}
local limit, claim, span, skip = tonumber(arg()), arg(), arg(), tonumber(arg())
local kinds, any = {}, true
for _ = 1, tonumber(arg()) do
  kinds[arg()] = true
  any = false
end
local own = {}
for _ = 1, tonumber(arg()) do
  local lease = arg() .. ':' .. arg()
  own[lease] = arg()
end
-- The same rule as `holds_lease`.
local function is_own(id, row)
  local claim = own[id .. ':' .. (row.epoch or '')]
  return claim and (claim == '' or not row.claim or row.claim == claim)
end
local expired = call('ZRANGEBYSCORE', P .. 'leases', '-inf', whole(now), 'LIMIT', skip, 1000)
local taken, skipped = 0, 0
if call('EXISTS', P .. 'sealed') == 1 then expired = {} end
for _, id in ipairs(expired) do
  if taken == limit then break end
  local row, flat = read(id)
  if not is_own(id, row) and (any or kinds[row.lane:match('\31([^\31]*)$')]) then
    local epoch, lease_until = next_epoch(row.epoch), whole(now + tonumber(span))
    change(id, row, { epoch = epoch, lease_until = lease_until, claim = claim })
    add_to_reply(id, flat, row.attempt or '0', epoch, lease_until)
    taken = taken + 1
  else
    skipped = skipped + 1
  end
end
finish()
return { NOW, leased, skipped, #expired }

-- name: prune
-- Removes up to `limit` jobs whose retention has passed, longest ended first. A child stays while its parent has not ended.
{job} {remove}
local limit, removed = tonumber(arg()), 0
local over = call('ZRANGEBYSCORE', P .. 'reserved_until', '-inf', NOW, 'LIMIT', 0, 1000)
if #over > 0 then
  call('ZREM', P .. 'reserved_until', unpack(over))
  call('HDEL', P .. 'reserved_keys', unpack(over))
end
for _ = 1, 3 do
  local state, kept, from = arg(), tonumber(arg()), 0
  while removed < limit do
    local ended = call('ZRANGEBYSCORE', P .. 'ended:' .. state, '-inf', whole(now - kept), 'LIMIT', from, limit)
    for _, id in ipairs(ended) do
      if removed == limit then break end
      local row = read(id)
      local parent = row.parent and call('HGET', P .. 'job:' .. row.parent, 'state')
      if parent and not FINAL[parent] then
        from = from + 1
      else
        remove(id, row)
        removed = removed + 1
      end
    end
    if #ended < limit then break end
  end
end
finish()
return removed
