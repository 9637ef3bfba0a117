-- Removes a job with all that belongs to it; a unique key stays for as long as it was promised.
local function remove(id, row)
  unplace(id, row)
  update_family(id, row, standing(row), NO_CHILD)
  call('DEL', P .. 'job:' .. id, P .. 'attempts:' .. id, P .. 'steps:' .. id, P .. 'signals:' .. id)
  call('ZREM', P .. 'ids', id)
  if row.key then call('DEL', P .. 'key:' .. row.tenant .. '\31' .. row.key) end
  if row.parent then
    -- Earlier versions listed ended children as well, and kept counts of zero.
    call('SREM', P .. 'children:' .. row.parent, id)
    local live = row.branch .. ':live'
    if call('HGET', P .. 'family:' .. row.parent, live) == '0' then call('HDEL', P .. 'family:' .. row.parent, live) end
  end
  if row.unique then
    local name = P .. 'unique:' .. row.unique
    local holder, till = (call('GET', name) or ''):match('^(%x+):(%d*)$')
    if holder == id then
      if till == '' or tonumber(till) <= now then
        call('DEL', name)
      else
        call('ZADD', P .. 'promises', till, id)
        call('HSET', P .. 'promised', id, row.unique)
        if given == '' then call('PEXPIREAT', name, till) end
      end
    end
  end
end
