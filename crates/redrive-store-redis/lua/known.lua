-- The job that has an idempotency key, and whether the same request was made under it.
local function key_holder(tenant, key, print)
  local known = call('GET', P .. 'key:' .. tenant .. '\31' .. key)
  if not known then return nil end
  local id, made = known:match('^(%x+):(.*)$')
  return made == print and 'existing' or 'conflict', id
end
