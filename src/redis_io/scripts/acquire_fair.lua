-- Acquire for those who queue. Finds the word free while others queue: then it is theirs, in order of arrival, and this is a
-- failed try like any other. Who is given the word has it for the time of its claim, as a bare token without a state, so that
-- nothing is to be undone if it never comes for it; it comes by this script, and finds the word its own.
-- KEYS, ARGV, replies: as acquire.lua, which follows.
if redis.call('EXISTS', KEYS[1]) == 0 then
  local s = redis.call('GET', KEYS[2])
  if s and string.byte(s, -1) ~= 10 then
    --#include layout.lua
    if is_readable(s) then
      local _, _, _, waiters = texts(s)
      local list = live_waiters(waiters, server_ms())
      local given = pass_on(list, KEYS[1], ARGV[6] or '')
      if given then
        store(KEYS[2], with_waiters(s, join_waiters(list, given)), CLEAN_MS, true)
      end
    end
  end
end
--#include acquire.lua
