-- Renews leases that are in force, those too that have run out but were not taken over; says who is to stop.
local span, answers = tonumber(arg()), {}
for n = 1, tonumber(arg()) do
  local id, epoch, claim = arg(), arg(), arg()
  local holds, cancelling = held(id, epoch, claim)
  if not holds then
    answers[n] = 'lost'
  else
    call('HSET', P .. 'job:' .. id, 'lease_until', whole(now + span))
    call('ZADD', P .. 'leases', whole(now + span), id)
    answers[n] = cancelling and 'cancel' or 'renewed'
  end
end
return answers
