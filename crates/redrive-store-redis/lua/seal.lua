-- Stops claims of this partition, or lets them go on: those under way have ended when it returns.
if arg() == '1' then call('SET', P .. 'sealed', '1') else call('DEL', P .. 'sealed') end
return 1
