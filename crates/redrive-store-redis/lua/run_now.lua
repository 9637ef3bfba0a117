-- Makes jobs due now that wait for their time.
return each_job(function(id, row)
  if not CLAIMABLE[row.state] then return row.state end
  change(id, row, { due = whole(math.min(row.due, now)), began = whole(math.min(row.began, now)) })
  return 'done'
end)
