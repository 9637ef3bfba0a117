-- What there is to know about a partition's key before anyone who waits for a turn goes on: what runs, what could at once, who
-- is first in strict order and whether that one waits, and the next that wait.
local answers = {}
for n = 1, tonumber(arg()) do
  local scope = arg()
  local first = call('ZRANGE', P .. 'strict:' .. scope, 0, 0)[1] or ''
  local waits = first ~= '' and call('HGET', P .. 'job:' .. first, 'awaits') == 'turn'
  answers[n] = {
    call('HGET', P .. 'running', scope) or '0',
    whole(call('ZCOUNT', P .. 'claimable:' .. scope, '-inf', whole(now))),
    first, waits and '1' or '',
    call('ZRANGE', P .. 'turn:' .. scope, 0, 99),
  }
end
return answers
