-- Takes the lock of bounded claims for a while, unless another has it; the number says who came later.
local R, call = KEYS[1], redis.call
if call('EXISTS', R .. 'lock') == 1 then return '' end
local token = string.format('%.0f', call('INCR', R .. 'locks'))
call('SET', R .. 'lock', token, 'PX', ARGV[1])
return token
