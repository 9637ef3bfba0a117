-- Settles plain successes, as most settlements are: under a lease in force the job has succeeded, under a lost one nothing changes.
local answers = {}
for n = 1, tonumber(arg()) do
  local id, epoch, claim = arg(), arg(), arg()
  local name = P .. 'job:' .. id
  local row = call('HMGET', name, 'state', 'epoch', 'claim', 'lane', 'scope', 'parent')
  if row[1] ~= '2' or row[2] ~= epoch or (claim ~= '' and row[3] and row[3] ~= claim) then
    answers[n] = 0
  elseif row[5] or row[6] then
    change(id, read(id), { state = '4', finished = NOW })
    free(row[5])
    answers[n] = 1
  else
    call('HSET', name, 'state', '4', 'finished', NOW)
    count(row[4], '2', -1)
    count(row[4], '4', 1)
    later_remove(P .. 'leases', id)
    later_add(P .. 'ended:4', NOW, id)
    answers[n] = 1
  end
end
finish()
return { answers, freed, 0, 0 }
