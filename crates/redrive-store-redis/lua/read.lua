-- Reads of jobs. These scripts change nothing.

-- name: get
-- Returns the rows of jobs by id.
{job}
local rows = {}
for n = 1, tonumber(arg()) do rows[n] = call('HGETALL', P .. 'job:' .. arg()) end
return rows

-- name: list
-- Returns jobs with these states and this queue, newest id first, before `before`. Reads at most `most` ids, and returns the last
-- one if there are more.
{job}
local index, before, most = arg(), arg(), tonumber(arg())
local states, lane = arg(), arg()
local ids = call('ZREVRANGEBYLEX', P .. index, before == '' and '+' or '(' .. before, '-', 'LIMIT', 0, most)
local rows = {}
for _, id in ipairs(ids) do
  local row = call('HMGET', P .. 'job:' .. id, 'state', 'lane')
  local fits = row[1] and (states == '' or states:find(row[1], 1, true))
  -- A damaged row may have no lane.
  if fits and (lane == '' or (row[2] and row[2]:find(lane, 1, true))) then
    rows[#rows + 1] = { id, call('HGETALL', P .. 'job:' .. id) }
  end
end
return { rows, #ids == most and ids[#ids] or '' }

-- name: attempts
-- Returns a page of a job's attempt log, newest first.
{job}
local id, after, limit = arg(), arg(), tonumber(arg())
return call('ZREVRANGEBYSCORE', P .. 'attempts:' .. id, '(' .. after, '-inf', 'LIMIT', 0, limit)

-- name: stats
-- Returns the number of jobs by queue and state.
{job}
return { whole(now), call('HGETALL', P .. 'counts') }

-- name: locate
-- Returns which of these jobs are in this shard.
{job}
local here = {}
for n = 1, tonumber(arg()) do here[n] = call('EXISTS', P .. 'job:' .. arg()) end
return here
