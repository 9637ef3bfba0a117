-- Holds jobs: those that wait for their time are set aside at once, others before their next attempt.
return each_job(function(id, row)
  if FINAL[row.state] then return 'ended:' .. row.state end
  if CLAIMABLE[row.state] and not row.awaits then
    change(id, row, { held = '1', state = '3', awaits = 'unhold' })
  else
    call('HSET', P .. 'job:' .. id, 'held', '1')
  end
  return row.state
end)
