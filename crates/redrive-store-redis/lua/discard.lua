-- Removes dead jobs with all that belongs to them.
return each_job(function(id, row)
  if row.state ~= '5' then return row.state end
  remove(id, row)
  return 'done'
end)
