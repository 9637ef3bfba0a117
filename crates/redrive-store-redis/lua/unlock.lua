-- Gives the lock of bounded claims back, if it is still this one's.
if redis.call('GET', KEYS[1] .. 'lock') == ARGV[1] then redis.call('DEL', KEYS[1] .. 'lock') end
return 1
