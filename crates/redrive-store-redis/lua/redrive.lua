-- Gives dead jobs a fresh run, due at once; of two at a time one does.
return each_job(function(id, row)
  if row.state ~= '5' then return row.state end
  change(id, row, {
    state = '0', run = whole((row.run or 1) + 1), attempt = false, began = NOW, due = NOW,
    wait = false, reason = false, output = false, finished = false, cancelling = false,
  })
  return 'done'
end)
