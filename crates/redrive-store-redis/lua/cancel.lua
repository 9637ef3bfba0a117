-- Ends jobs that do not run and asks those that do to end, with everything below one that had not ended.
local function cancel_one(id)
  local row = read(id)
  if not row then return 'missing' end
  if FINAL[row.state] then return row.state end
  if row.state == '2' then
    call('HSET', P .. 'job:' .. id, 'cancelling', '1')
    return 'requested'
  end
  change(id, row, { state = '6', finished = whole(now), awaits = false })
  free(row.scope)
  return 'done'
end

local function cancel_tree(id)
  local answer = cancel_one(id)
  if answer ~= 'done' and answer ~= 'requested' then return answer end
  local found, seen, next = { id }, { [id] = true }, 1
  while next <= #found do
    for _, child in ipairs(call('SMEMBERS', P .. 'children:' .. found[next])) do
      if not seen[child] then
        seen[child] = true
        found[#found + 1] = child
        cancel_one(child)
      end
    end
    next = next + 1
  end
  return answer
end

local answers = {}
for n = 1, tonumber(arg()) do answers[n] = cancel_tree(arg()) end
finish()
return { answers, freed }
