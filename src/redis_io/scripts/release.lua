-- Release: gives the word back if it is ours, says how the hold ended, and wakes one waiter. DEL is the first write, so it
-- works when memory is full. Whatever comes of it, the token is dead from now on: an acquire of it that is still on its
-- way must not come to anything, and a release that is repeated because its reply was lost is told "released".
-- The common path has four calls and no functions: each costs. Layout of the state: layout.lua.
-- KEYS  1 word  2 state
-- ARGV  1 token  2 mark (C clean, P panicked, A abandoned)  3 how long to keep the state (ms)
--       4 ms that the key must stay (hold at least), if any
-- reply 1 released; 0 not ours
local read = redis.call('MGET', KEYS[1], KEYS[2])
local s = read[2]
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
if read[1] ~= token then
  --#include layout.lua
  if s and not is_readable(s) or not s and redis.call('EXISTS', KEYS[2]) == 1 then
    -- Somebody's data by now, which stays; and the word is not ours all the same.
    return 0
  elseif s and string.find(s, id, 73, true) then
    return 1
  elseif s then
    redis.pcall('SET', KEYS[2], bury_taken(s, id), 'KEEPTTL')
  else
    redis.pcall('SET', KEYS[2], bury_taken(EMPTY, id), 'PX', CLEAN_MS)
  end
  return 0
end
redis.call('DEL', KEYS[1])
if not s or string.byte(s, 1) ~= 49 or #s < 203 then
  -- Ours to free, whatever has become of its state.
  return 1
end
local released = '1' .. ARGV[2] .. string.sub(s, 3, 64) .. '--------' .. id .. string.sub(s, 73, 192)
  .. string.sub(s, 201)
if ARGV[4] then
  -- A value that no script takes for a token. Nobody is woken: the word is not free yet.
  redis.pcall('SET', KEYS[1], 'lh:rest:' .. string.sub(s, 4, 19), 'PX', ARGV[4])
  redis.pcall('SET', KEYS[2], released, 'PX', string.format('%.0f', ARGV[3] + ARGV[4]))
elseif string.byte(s, -1) == 10 then
  -- The list of waiters, which comes last, is empty.
  redis.pcall('SET', KEYS[2], released, 'PX', ARGV[3])
else
  --#include layout.lua
  store_and_wake(KEYS[2], KEYS[1], released, ARGV[3])
end
return 1
