-- Inspect a table: reads all there is, writes nothing. Layout: table.lua.
-- KEYS  1 table
-- reply {type, server time (ms), fields and values}
local kind = redis.call('TYPE', KEYS[1])
if type(kind) == 'table' then
  kind = kind.ok
end
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
return {kind, now, kind == 'hash' and redis.call('HGETALL', KEYS[1]) or {}}
