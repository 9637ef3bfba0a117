-- Forgets the steps of dead jobs.
return each_job(function(id, row)
  if row.state ~= '5' then return row.state end
  call('DEL', P .. 'steps:' .. id)
  return 'done'
end)
