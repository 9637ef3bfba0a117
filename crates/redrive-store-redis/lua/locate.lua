-- Which of these jobs are in this partition.
local here = {}
for n = 1, tonumber(arg()) do here[n] = call('EXISTS', P .. 'job:' .. arg()) end
return here
