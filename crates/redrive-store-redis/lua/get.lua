-- Jobs by id, as they are.
local rows = {}
for n = 1, tonumber(arg()) do rows[n] = call('HGETALL', P .. 'job:' .. arg()) end
return rows
