-- Takes over promises whose key nobody holds in force, or the same job held before.
local answers = {}
for n = 1, tonumber(arg()) do
  local unique, id, till = arg(), arg(), arg()
  local name = P .. 'unique:' .. unique
  local other, promised = (call('GET', name) or ''):match('^(%x+):(%d*)$')
  local live = false
  if other and other ~= id then
    local holder = call('HGET', P .. 'job:' .. other, 'state')
    live = holder and not FINAL[holder]
    if promised ~= '' and tonumber(promised) > now then live = true end
  end
  if live then
    answers[n] = 0
  else
    call('SET', name, id .. ':' .. till)
    call('ZADD', P .. 'promises', till, id)
    call('HSET', P .. 'promised', id, unique)
    if given == '' then call('PEXPIREAT', name, till) end
    answers[n] = 1
  end
end
return answers
