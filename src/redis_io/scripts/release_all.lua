-- Release all: as release.lua, for each of several words: those that are ours are given back whatever became of the others.
-- Reads in one call, and gives all words back in one. The common path has no functions.
-- KEYS  word and state of each
-- ARGV  1 token  2 mark (C clean, P panicked, A abandoned)  3 how long to keep the states (ms)
--       4 not used  5 '1' if the acquire was sent more than once
-- reply 1 released, all of them; 0 one of them was not ours
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
local read = redis.call('MGET', unpack(KEYS))
local ours = {}
for i = 1, #KEYS, 2 do
  if read[i] == token then
    ours[#ours + 1] = KEYS[i]
  end
end
if #ours > 0 then
  redis.call('DEL', unpack(ours))
end
local all = 1
for i = 1, #KEYS, 2 do
  local s = read[i + 1]
  local line_end = s and string.find(s, '\n', 265, true)
  line_end = line_end and string.find(s, '\n', line_end + 1, true)
  local dead_at = line_end and string.find(s, string.sub(id, 2), 73, true)
  if read[i] == token and not ARGV[5] and line_end and string.find(s, '\n', line_end + 1, true) == #s
    and string.find(s, '^1%u%u%d%d') and not (dead_at and dead_at < 259) then
    -- Nobody waits.
    redis.pcall('SET', KEYS[i + 1], '1' .. ARGV[2] .. string.sub(s, 3, 64) .. '--------' .. id .. string.sub(s, 73, 192)
      .. string.sub(s, 201), 'PX', ARGV[3])
  else
    --#include layout.lua
    -- To MGET, a key of another type is none.
    s = s or redis.pcall('GET', KEYS[i + 1]) or EMPTY
    local readable = type(s) == 'string' and is_readable(s)
    if read[i] == token then
      if readable then
        s = bury('1' .. ARGV[2] .. string.sub(s, 3, 64) .. NOBODY .. string.sub(s, 73), id)
        if ARGV[5] then
          s = bury_deep(s, id)
        end
        pass_on(KEYS[i + 1], KEYS[i], s, ARGV[3])
      end
    elseif not readable then
      all = 0
    elseif not is_released(s, id) then
      all = 0
      s = bury(s, taken(id))
      if ARGV[5] then
        s = bury_deep(s, taken(id))
      end
      store(KEYS[i + 1], s, CLEAN_MS, true)
    end
  end
end
return all
