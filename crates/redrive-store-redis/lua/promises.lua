-- Unique keys that are still promised to jobs that are gone.
local promises = {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'promises', '(' .. NOW, '+inf')) do
  local name = call('HGET', P .. 'promised', id)
  local holder, till = (call('GET', P .. 'unique:' .. name) or ''):match('^(%x+):(%d+)$')
  if holder == id and call('EXISTS', P .. 'job:' .. id) == 0 then
    promises[#promises + 1] = name
    promises[#promises + 1] = id
    promises[#promises + 1] = till
  end
end
return promises
