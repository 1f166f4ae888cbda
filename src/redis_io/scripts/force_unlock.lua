-- Force unlock: takes the word away from whoever has it, also from another library's lock. The next holder learns that its
-- predecessor was cut off. What has no ttl, or is no string, is somebody's data and stays.
-- KEYS  1 word  2 state
-- reply {1} it was held; {0} it was free; {-2, which key} somebody's data; {-3, version} state of a later layout
--#include layout.lua
local held_by = redis.call('GET', KEYS[1])
if not held_by then
  return {0}
end
if redis.call('PTTL', KEYS[1]) == -1 then
  return {-2, 'word'}
end
local s = redis.call('GET', KEYS[2]) or EMPTY
if not is_readable(s) then
  return refusal(s)
end
redis.call('DEL', KEYS[1])
local id = string.sub(s, 65, 72)
if string.sub(held_by, 1, 8) == id then
  s = bury(s, taken(id))
elseif string.sub(held_by, 1, 8) ~= 'lh:rest:' then
  local _, kind, earlier, waiters = texts(s)
  s = with_texts(s, 'another library', kind, earlier, waiters)
  s = '1A' .. string.sub(s, 3, 19) .. string.sub(s, 4, 19) .. string.sub(s, 36)
end
s = string.sub(s, 1, 64) .. NOBODY .. string.sub(s, 73)
pass_on(KEYS[2], KEYS[1], s, keep_ms(s))
return {1}
