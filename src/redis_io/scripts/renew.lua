-- Renew: re-arms the word's ttl, if the word is still ours. Creates no key. A word of another type is not ours, and no
-- error either. What was left before tells the client of a server clock that was set forward.
-- KEYS  1 word
-- ARGV  1 token  2 ttl (ms)
-- reply {1, ms that were left} renewed; {0} not ours
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return {0}
end
local left = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, left}
