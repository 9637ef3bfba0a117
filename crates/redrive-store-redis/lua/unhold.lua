-- Lets jobs go on that were held.
return each_job(function(id, row)
  if FINAL[row.state] then return 'ended:' .. row.state end
  call('HDEL', P .. 'job:' .. id, 'held')
  row.held = nil
  if row.awaits == 'turn' then return turn_of(row) end
  if row.awaits and has_come(id, row) then go_on(id, row) end
  return row.state
end)
