-- Removes a job with all that belongs to it; a unique key stays for as long as it was promised.
local function remove(id, row)
  unplace(id, row)
  call('DEL', P .. 'job:' .. id, P .. 'attempts:' .. id, P .. 'steps:' .. id, P .. 'signals:' .. id)
  call('ZREM', P .. 'ids', id)
  if row.key then call('DEL', P .. 'key:' .. row.tenant .. '\31' .. row.key) end
  if row.parent then
    call('SREM', P .. 'children:' .. row.parent, id)
    if call('EXISTS', P .. 'children:' .. row.parent) == 0 then call('DEL', P .. 'family:' .. row.parent) end
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
