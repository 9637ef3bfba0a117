-- Returns an iterator over the due jobs of several lanes of one priority: earliest due time first, ties by id. It reads each lane in
-- pieces, so that a claim of a few jobs does not read a long lane.
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

-- A flat list of lanes, each followed by the due time of its first job.
local function lane_heads(asked)
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

-- Reads the requested lanes from the arguments, and groups them by priority. The caller sends the highest priority first.
local function lanes_by_priority()
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
