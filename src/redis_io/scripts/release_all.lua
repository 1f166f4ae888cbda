-- Release all: as release.lua, for each of several words: those that are ours are given back whatever became of the others.
-- KEYS  word and state of each
-- ARGV  1 token  2 mark (C clean, P panicked, A abandoned)  3 how long to keep the states (ms)
--       4 not used  5 '1' if the acquire was sent more than once
-- reply 1 released, all of them; 0 one of them was not ours
--#include layout.lua
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
local all = 1
for i = 1, #KEYS, 2 do
  local word, state = KEYS[i], KEYS[i + 1]
  local ours = redis.pcall('GET', word) == token
  if ours then
    redis.call('DEL', word)
  end
  local s = redis.pcall('GET', state) or EMPTY
  local readable = type(s) == 'string' and is_readable(s)
  if ours then
    if readable then
      s = '1' .. ARGV[2] .. string.sub(s, 3, 64) .. NOBODY .. string.sub(s, 73)
      s = bury(s, id)
      if ARGV[5] then
        s = bury_deep(s, id)
      end
      pass_on(state, word, s, ARGV[3])
    end
  elseif not readable then
    all = 0
  elseif not is_released(s, id) then
    all = 0
    s = bury(s, taken(id))
    if ARGV[5] then
      s = bury_deep(s, taken(id))
    end
    store(state, s, CLEAN_MS, true)
  end
end
return all
