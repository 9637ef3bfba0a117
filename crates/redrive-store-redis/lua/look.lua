-- Looks at due jobs of the lanes in order, at most `limit`, and at what runs and has started beside them, for whoever holds
-- the lock of bounded claims; from here on an older holder takes nothing.
local token, limit = arg(), tonumber(arg())
if tonumber(call('GET', P .. 'fence') or 0) > tonumber(token) then return { whole(now), 'late' } end
call('SET', P .. 'fence', token)
local due, names, seen = {}, {}, {}
for _, lanes in ipairs(levels()) do
  local next_due = walk(lanes, limit)
  while #due < limit do
    local id, lane = next_due()
    if not id then break end
    local row = call('HMGET', P .. 'job:' .. id, 'due', 'scope', 'strict')
    due[#due + 1] = { id, lane, row[1], row[2] or '', row[3] or '' }
    if row[2] and not seen[row[2]] then
      seen[row[2]] = true
      names[#names + 1] = { row[2], call('HGET', P .. 'running', row[2]) or '0', call('ZRANGE', P .. 'strict:' .. row[2], 0, 0)[1] or '' }
    end
  end
  if #due == limit then break end
end
-- Starts since an instant, of queues and of keys whose rate is asked for: a queue's own are named like it.
local queues = {}
for _ = 1, tonumber(arg()) do
  local queue, whole_since, key_since = arg(), arg(), arg()
  local running = call('HGET', P .. 'counts', queue .. '\0312') or '0'
  local starts = {}
  if whole_since ~= '' then starts = call('ZRANGEBYSCORE', P .. 'starts:' .. queue, '(' .. whole_since, '+inf', 'WITHSCORES') end
  queues[#queues + 1] = { queue, running, starts }
  if key_since ~= '' then
    for _, name in ipairs(names) do
      if name[1]:match('^[^\31]*') == queue then
        name[4] = call('ZRANGEBYSCORE', P .. 'starts:' .. name[1], '(' .. key_since, '+inf', 'WITHSCORES')
      end
    end
  end
end
return { whole(now), 'looked', due, names, queues }
