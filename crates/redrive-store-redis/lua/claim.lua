-- Leases due jobs of the lanes in order, and says when the next of each is due. Stops before one whose key has bounds or an order: that takes a look at others first.
local limit, worker, claim, span = tonumber(arg()), arg(), arg(), arg()
local bounded = 0
if call('EXISTS', P .. 'sealed') == 1 then limit = 0 end
local asked = levels()
for _, lanes in ipairs(asked) do
  local next_due = walk(lanes)
  while #leased < limit and bounded == 0 do
    local id, lane = next_due()
    if not id then break end
    local row, flat = read(id)
    if not row then row, flat = {}, {} end
    -- Whatever else is damaged, it was found here.
    row.lane = lane
    if row.scope then
      bounded = 1
    else
      lease_free(id, row, flat, worker, claim, span)
    end
  end
  if #leased == limit or bounded == 1 then break end
end
finish()
return { whole(now), bounded, leased, heads(asked) }
