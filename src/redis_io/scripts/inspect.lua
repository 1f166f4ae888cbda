-- Inspect: reads all there is, writes nothing. Layout of the state: layout.lua.
-- KEYS  1 word  2 state
-- reply {word's value or nil, ms left, state or nil, server time (ms), word's type}
local read = redis.call('MGET', KEYS[1], KEYS[2])
local kind = redis.call('TYPE', KEYS[1])
if type(kind) == 'table' then
  kind = kind.ok
end
local t = redis.call('TIME')
return {read[1], redis.call('PTTL', KEYS[1]), read[2], string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), kind}
