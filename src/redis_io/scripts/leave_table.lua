-- Leave: ends a wait that came to nothing. Takes the ticket off the list; if a token is named, an acquire of it may have been
-- carried out unseen, or its turn may have come: then its lease is given back, the mark put back that it found, and the token is
-- dead. What has become possible is granted. Layout of the table: table.lua.
-- KEYS  1 table
-- ARGV  1 token, or ''  2 ticket, or ''  3 '1' if no acquire of the token is under way: then it need not be remembered
-- reply {1} left; {-2, key} somebody's data; {-3, version} state of a later layout
--#include table.lua
local id = string.sub(ARGV[1], 1, 8)
local t, refused = open(ARGV[1])
if not t then
  return refused
end
purge(t)
if t.mine then
  take_lease(t, t.token, t.mine)
  t.s = without_grant(t.s, id)
end
if ARGV[1] ~= '' and not ARGV[3] then
  t.s = bury_deep(t.s, id)
elseif t.is_new then
  return {1}
end
take_off(t, ARGV[2])
serve(t)
t.is_late = true
return save(t, keep(t)) or {1}
