-- Removes a job with its attempts, steps, signals and keys. A unique key that was reserved for longer stays reserved.
local function remove(id, row)
  unindex(id, row)
  update_parent(id, row, child_counts(row), NO_CHILD)
  call('DEL', P .. 'job:' .. id, P .. 'attempts:' .. id, P .. 'steps:' .. id, P .. 'signals:' .. id)
  call('ZREM', P .. 'ids', id)
  if row.key then call('DEL', P .. 'key:' .. row.tenant .. '\31' .. row.key) end
  if row.parent then
    -- Earlier versions also listed children that had ended, and kept counts of zero.
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
        call('ZADD', P .. 'reserved_until', till, id)
        call('HSET', P .. 'reserved_keys', id, row.unique)
        if test_clock == '' then call('PEXPIREAT', name, till) end
      end
    end
  end
end
