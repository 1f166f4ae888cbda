-- Acquire for those who queue. Finds the word free while others queue: then it is theirs, in order of arrival, and this is a
-- failed try like any other. Who was given the word may come by this script, too, and finds the word its own.
-- KEYS, ARGV, replies: as acquire.lua, which follows.
if redis.call('EXISTS', KEYS[1]) == 0 then
  local s = redis.call('GET', KEYS[2])
  if s and string.byte(s, -1) ~= 10 then
    --#include layout.lua
    if is_readable(s) then
      pass_on(KEYS[2], KEYS[1], s, keep_ms(s), ARGV[6] or '')
    end
  end
end
--#include acquire.lua
