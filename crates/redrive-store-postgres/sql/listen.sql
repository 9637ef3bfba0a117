-- Hears of what other nodes make claimable.
LISTEN redrive
