-- Force unlock: takes all leases away. Whoever had the lock alone leaves the mark of one that was cut off. Those who wait get
-- what has become possible. Layout of the table: table.lua.
-- KEYS  1 table
-- reply {1} it was held; {0} it was free; {-2, key} somebody's data; {-3, version} state of a later layout
--#include table.lua
local t, refused = open('')
if not t then
  return refused
end
purge(t)
if t.used == 0 then
  return {0}
end
local fields = redis.call('HKEYS', KEY)
for _, field in ipairs(fields) do
  if string.sub(field, 1, 1) == 'h' then
    redis.call('HDEL', KEY, field)
    t.s = bury(t.s, taken(string.sub(field, 2, 9)))
  end
end
t.s = string.sub(t.s, 1, 64) .. NOBODY .. string.sub(t.s, 73)
t.used, t.earliest = 0, NEVER
serve(t)
return save(t, keep(t)) or {1}
