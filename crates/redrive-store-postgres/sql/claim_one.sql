-- No two lanes have the same priority, so that one after the other gives what it has.
chosen AS MATERIALIZED (SELECT wanted.*, wanted.most AS quota FROM wanted),
