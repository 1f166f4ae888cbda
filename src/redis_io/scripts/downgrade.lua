-- Downgrade: a writer becomes a reader, with no moment in between, and all readers that wait enter with him. His section as a
-- writer ended well. Layout of the table: table.lua.
-- KEYS  1 table
-- ARGV  1 new token  2 ttl (ms)  3 label \n kind  4 lowest fencing token to give (16 digits)  5 old token
--       6 '1' if the old token's acquire was sent more than once
-- reply as of an acquire; {-6} the old lease is gone
--#include table.lua
local t, refused = open(ARGV[1])
if not t then
  return refused
end
if is_dead(t.s, string.sub(t.token, 1, 8)) then
  return {-1}
end
purge(t)
local old_id = string.sub(ARGV[5], 1, 8)
if not t.mine then
  local old = redis.call('HGET', KEY, 'h' .. ARGV[5])
  if not old or string.sub(t.s, 65, 72) ~= old_id then
    return {-6}
  end
  take_lease(t, ARGV[5], old)
  t.s = bury('1C' .. string.sub(t.s, 3, 64) .. NOBODY .. string.sub(t.s, 73), old_id)
  if ARGV[6] then
    t.s = bury_deep(t.s, old_id)
  end
  t.opening = true
end
local reply = grant(t, tonumber(ARGV[2]), 1, ARGV[3], ARGV[4], false)
serve(t)
return save(t, tonumber(ARGV[2]) + keep(t)) or reply
