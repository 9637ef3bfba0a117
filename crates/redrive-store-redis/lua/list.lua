-- Jobs in the order of their ids from the newest, before `before`, out of at most `most` that it looks at. Says where it stopped.
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
