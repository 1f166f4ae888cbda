-- Renew: re-arms the word's ttl, if the word is still ours; of several words all, if all are. Creates no key. A word of
-- another type is not ours, and no error either; any other error (rights, a replica) says nothing about it and is the reply.
-- What was left before tells the client of a server clock that was set forward.
-- KEYS  the words
-- ARGV  1 token  2 ttl (ms)
-- reply {1, ms that were left} renewed; {0} not ours
for i = 1, #KEYS do
  local held_by = redis.pcall('GET', KEYS[i])
  if held_by ~= ARGV[1] then
    if type(held_by) == 'table' and not string.find(held_by.err, 'WRONGTYPE', 1, true) then
      return held_by
    end
    return {0}
  end
end
local left = redis.call('PTTL', KEYS[1])
for i = 1, #KEYS do
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return {1, left}
