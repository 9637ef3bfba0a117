-- What an enqueue of each job would find in its way, by id or by key; it changes nothing.
local answers = {}
for _ = 1, tonumber(arg()) do
  local id, tenant, key, print = arg(), arg(), arg(), arg()
  local answer, other
  if call('EXISTS', P .. 'job:' .. id) == 1 then
    answer, other = 'existing', id
  elseif key ~= '' then
    answer, other = key_holder(tenant, key, print)
  end
  answers[#answers + 1] = answer or 'free'
  answers[#answers + 1] = other or ''
end
return answers
