-- Removes up to `limit` jobs that ended long enough ago, longest ago first; a child stays while its parent may ask for it.
local limit, removed = tonumber(arg()), 0
local over = call('ZRANGEBYSCORE', P .. 'promises', '-inf', NOW, 'LIMIT', 0, 1000)
if #over > 0 then
  call('ZREM', P .. 'promises', unpack(over))
  call('HDEL', P .. 'promised', unpack(over))
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
