-- Walks through the due jobs of lanes of one priority, earliest due first, ties by id. Reads each lane in pieces.
local PIECE = 64
local function walk(lanes, most)
  local streams = {}
  for _, lane in ipairs(lanes) do streams[#streams + 1] = { lane = lane, from = 0, jobs = {}, next = 1 } end
  local function head(stream)
    if stream.next > #stream.jobs and not stream.over then
      local piece = #lanes == 1 and math.max(most, 1) or PIECE
      stream.jobs = call('ZRANGEBYSCORE', P .. 'due:' .. stream.lane, '-inf', whole(now), 'WITHSCORES', 'LIMIT', stream.from, piece)
      stream.from, stream.next, stream.over = stream.from + piece, 1, #stream.jobs < piece * 2
    end
    return stream.jobs[stream.next], tonumber(stream.jobs[stream.next + 1])
  end
  return function()
    local first, first_id, first_due
    for _, stream in ipairs(streams) do
      local id, due = head(stream)
      if id and (not first or due < first_due or (due == first_due and id < first_id)) then
        first, first_id, first_due = stream, id, due
      end
    end
    if not first then return nil end
    first.next = first.next + 2
    return first_id, first.lane
  end
end

-- When the first job of each lane is due, flat.
local function heads(asked)
  local all = {}
  for _, lanes in ipairs(asked) do
    for _, lane in ipairs(lanes) do
      local first = call('ZRANGE', P .. 'due:' .. lane, 0, 0, 'WITHSCORES')
      if #first > 0 then
        all[#all + 1] = lane
        all[#all + 1] = first[2]
      end
    end
  end
  return all
end

-- The lanes asked for, by priority, as they come: the highest first.
local function levels()
  local all, last = {}, nil
  for _ = 1, tonumber(arg()) do
    local lane = arg()
    if priority_of(lane) ~= last then
      all[#all + 1] = {}
      last = priority_of(lane)
    end
    local level = all[#all]
    level[#level + 1] = lane
  end
  return all
end
