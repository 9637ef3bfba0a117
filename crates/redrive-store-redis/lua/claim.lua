-- Leases due jobs of the lanes in order, and says when the next of each is due. Stops before one whose key has bounds or an order:
-- that takes a look at others first.
local limit, worker, claim, span = tonumber(arg()), arg(), arg(), arg()
local lease_until = whole(now + tonumber(span))
local bounded, taken = 0, 0
if call('EXISTS', P .. 'sealed') == 1 then limit = 0 end
local asked = levels()
for _, lanes in ipairs(asked) do
  local next_due = walk(lanes, limit - taken)
  while taken < limit and bounded == 0 do
    local id, lane = next_due()
    if not id then break end
    if lease_free(id, lane, worker, claim, lease_until) then taken = taken + 1 else bounded = 1 end
  end
  if taken == limit or bounded == 1 then break end
end
finish()
return { NOW, bounded, leased, heads(asked) }
