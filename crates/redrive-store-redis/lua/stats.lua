-- Counts by queue and state.
return { whole(now), call('HGETALL', P .. 'counts') }
