-- Release one lease of a table, and grant what has become possible. HDEL is the first write, so it works when memory is full.
-- Whatever comes of it, the token is dead from now on. Layout of the table: table.lua.
-- KEYS  1 table
-- ARGV  1 token  2 mark (C clean, P panicked, A abandoned)  3 not used  4 not used  5 '1' if the acquire was sent more than once
-- reply 1 released; 0 not ours
--#include table.lua
local id = string.sub(ARGV[1], 1, 8)
local t, refused = open(ARGV[1])
if not t then
  return refused.err and refused or 0
end
purge(t)
local released = 1
if t.mine then
  take_lease(t, t.token, t.mine)
  if string.sub(t.s, 65, 72) == id then
    t.s = '1' .. ARGV[2] .. string.sub(t.s, 3, 64) .. NOBODY .. string.sub(t.s, 73)
  end
  t.s = bury(t.s, id)
  if ARGV[5] then
    t.s = bury_deep(t.s, id)
  end
elseif string.find(string.sub(t.s, 73, 264), id, 1, true) then
  return 1
else
  released = 0
  t.is_late = true
  t.s = bury(t.s, taken(id))
  if ARGV[5] then
    t.s = bury_deep(t.s, taken(id))
  end
end
serve(t)
save(t, keep(t))
return released
