-- When each lane's first job is due, to choose lanes by. Forgets lanes that are empty. Reads one job of each lane.
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
