-- Set permits: stores a semaphore's limit, and grants what has become possible. Nothing is taken from those who hold; a waiter
-- that wants more than there are now is told so. Layout of the table: table.lua.
-- KEYS  1 table
-- ARGV  1 limit
-- reply {1} stored; {-2, key} somebody's data; {-3, version} state of a later layout
--#include table.lua
local t, refused = open('')
if not t then
  return refused
end
purge(t)
t.limit = tonumber(ARGV[1])
t.phase = 'l'
serve(t)
return save(t, keep(t)) or {1}
