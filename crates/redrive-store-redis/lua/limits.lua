-- Claims under limits and strict order, and the slots that ended jobs free.
-- A lock lets one such claim run at a time. Its token grows with each holder. `candidates` writes the token into every shard as a
-- fence, so a holder that stalled for longer than the lock lasts changes nothing afterwards.

-- name: lock
-- Takes the lock for a limited time unless another claim holds it, and returns a token that is larger than all before.
local R, call = KEYS[1], redis.call
if call('EXISTS', R .. 'lock') == 1 then return '' end
local token = string.format('%.0f', call('INCR', R .. 'locks'))
call('SET', R .. 'lock', token, 'PX', ARGV[1])
return token

-- name: unlock
-- Releases the lock if the token still holds it.
if redis.call('GET', KEYS[1] .. 'lock') == ARGV[1] then redis.call('DEL', KEYS[1] .. 'lock') end
return 1

-- name: candidates
-- Reads due jobs of the lanes in claim order, at most `limit`, with the running jobs and recent starts that limits depend on.
-- From here on, a holder with an older token changes nothing.
{job} {walk}
local token, limit = arg(), tonumber(arg())
if tonumber(call('GET', P .. 'fence') or 0) > tonumber(token) then return { whole(now), 'stale' } end
call('SET', P .. 'fence', token)
local due, scopes_found, seen = {}, {}, {}
for _, lanes in ipairs(lanes_by_priority()) do
  local next_due = walk(lanes, limit)
  while #due < limit do
    local id, lane = next_due()
    if not id then break end
    local row = call('HMGET', P .. 'job:' .. id, 'due', 'scope', 'strict')
    due[#due + 1] = { id, lane, row[1], row[2] or '', row[3] or '' }
    if row[2] and not seen[row[2]] then
      seen[row[2]] = true
      scopes_found[#scopes_found + 1] = { row[2], call('HGET', P .. 'running', row[2]) or '0', call('ZRANGE', P .. 'strict:' .. row[2], 0, 0)[1] or '' }
    end
  end
  if #due == limit then break end
end
-- Recent starts of queues and of scopes with a rate limit. The starts of a whole queue are stored under its name.
local queues_found = {}
for _ = 1, tonumber(arg()) do
  local queue, queue_since, scope_since = arg(), arg(), arg()
  local running = call('HGET', P .. 'counts', queue .. '\0312') or '0'
  local starts = {}
  if queue_since ~= '' then starts = call('ZRANGEBYSCORE', P .. 'starts:' .. queue, '(' .. queue_since, '+inf', 'WITHSCORES') end
  queues_found[#queues_found + 1] = { queue, running, starts }
  if scope_since ~= '' then
    for _, name in ipairs(scopes_found) do
      if name[1]:match('^[^\31]*') == queue then
        name[4] = call('ZRANGEBYSCORE', P .. 'starts:' .. name[1], '(' .. scope_since, '+inf', 'WITHSCORES')
      end
    end
  end
end
return { whole(now), 'ok', due, scopes_found, queues_found }

-- name: apply_admissions
-- Leases candidates, delays them or makes them wait for a slot, as core decided. Changes nothing if another token is newer, and skips
-- jobs that have changed since.
{job} {lease}
local token, worker, claim, span = arg(), arg(), arg(), arg()
if call('GET', P .. 'fence') ~= token or call('EXISTS', P .. 'sealed') == 1 then return { whole(now), 'stale' } end
for _ = 1, tonumber(arg()) do
  local id, action = arg(), arg()
  local row, flat = read(id)
  if row and CLAIMABLE[row.state] and tonumber(row.due) <= now then
    if action == 'take' then
      lease(id, row, flat, worker, claim, span)
    elseif action == 'wait' then
      change(id, row, { state = '3', awaits = 'turn' })
    else
      change(id, row, { due = action })
    end
  end
end
-- Records starts for rate limits, and drops those that no longer count.
for _ = 1, tonumber(arg()) do
  local name, added, since = P .. 'starts:' .. arg(), tonumber(arg()), arg()
  call('ZREMRANGEBYSCORE', name, '-inf', since)
  for n = 1, added do call('ZADD', name, NOW, NOW .. ':' .. claim .. ':' .. n) end
end
finish()
return { whole(now), 'ok', leased }

-- name: scope_state
-- Reads the numbers that decide which jobs of a scope get free slots: running and claimable jobs, the first job in strict order and
-- whether it waits, and the first 100 jobs that wait for a slot.
{job}
local answers = {}
for n = 1, tonumber(arg()) do
  local scope = arg()
  local first = call('ZRANGE', P .. 'strict:' .. scope, 0, 0)[1] or ''
  local waits = first ~= '' and call('HGET', P .. 'job:' .. first, 'awaits') == 'turn'
  answers[n] = {
    call('HGET', P .. 'running', scope) or '0',
    whole(call('ZCOUNT', P .. 'claimable:' .. scope, '-inf', whole(now))),
    first, waits and '1' or '',
    call('ZRANGE', P .. 'turn:' .. scope, 0, 99),
  }
end
return answers

-- name: grant_slots
-- Ends the wait of jobs that wait for a slot. A job that no longer waits is not changed.
{job} {make_due}
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  if row and row.awaits == 'turn' then
    make_due(id, row, 'turn')
    answers[n] = 1
  else
    answers[n] = 0
  end
end
finish()
return answers
