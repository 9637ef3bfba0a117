-- Waits until every claim that began before has ended and keeps others back, so that none misses a seal that is written now.
LOCK TABLE redrive.jobs IN EXCLUSIVE MODE
