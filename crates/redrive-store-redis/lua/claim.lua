-- Leases due jobs of the lanes in order, and says when the next of each is due. Stops before one whose key has bounds or an order: that takes a look at others first.
local limit, worker, claim, span = tonumber(arg()), arg(), arg(), arg()
local bounded = 0
local asked = levels()
for _, lanes in ipairs(asked) do
  local next_due = walk(lanes, true)
  while #leased < limit and bounded == 0 do
    local id, lane = next_due()
    if not id then break end
    local row = read(id) or {}
    -- Whatever else is damaged, it was found here.
    row.lane = lane
    if row.scope then
      bounded = 1
    else
      lease(id, row, worker, claim, span)
    end
  end
  if #leased == limit or bounded == 1 then break end
end
finish()
return { whole(now), bounded, leased, heads(asked) }
