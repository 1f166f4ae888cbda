-- Renew: re-arms the word's ttl, if the word is still ours. Creates no key. A word of another type is not ours, and no
-- error either; any other error (rights, a replica) says nothing about it and is the reply. What was left before tells the
-- client of a server clock that was set forward.
-- KEYS  1 word
-- ARGV  1 token  2 ttl (ms)
-- reply {1, ms that were left} renewed; {0} not ours
local held_by = redis.pcall('GET', KEYS[1])
if held_by ~= ARGV[1] then
  if type(held_by) == 'table' and not string.find(held_by.err, 'WRONGTYPE', 1, true) then
    return held_by
  end
  return {0}
end
local left = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, left}
