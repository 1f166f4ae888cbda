-- Release: gives the word back if it is ours, says how the hold ended, and lets one waiter have it. The first write is DEL, or is
-- made up for by it, so it works when memory is full. Whatever comes of it, the token is dead from now on: an acquire of it that is still on its
-- way must not come to anything, and a release that is repeated because its reply was lost is told "released".
-- The common path has three calls and no functions: each costs. Layout of the state: layout.lua.
-- KEYS  1 word  2 state
-- ARGV  1 token  2 mark (C clean, P panicked, A abandoned); of a holder with several fencing tokens also the last one that it
--       used (16 digits), and, if it did not end well, whose that was  3 how long to keep the state (ms)
--       4 ms that the key must stay (hold at least), or 0, or left out  5 '1' if the acquire was sent more than once
-- reply 1 released; 0 not ours
local read = redis.call('MGET', KEYS[1], KEYS[2])
local s = read[2]
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
if read[1] ~= token then
  --#include layout.lua
  if s and not is_readable(s) or not s and redis.call('EXISTS', KEYS[2]) == 1 then
    -- Somebody's data by now, which stays; and the word is not ours all the same.
    return 0
  end
  s = s or EMPTY
  if is_released(s, id) then
    return 1
  end
  s = bury(s, taken(id))
  if ARGV[5] then
    s = bury_deep(s, taken(id))
  end
  store(KEYS[2], s, CLEAN_MS, true)
  return 0
end
-- Whoever waits has it from our hands: nobody sees it free in between.
local is_wanted = s and string.byte(s, -1) ~= 10 and not ARGV[4] and #ARGV[2] < 18
if not is_wanted then
  redis.call('DEL', KEYS[1])
end
if not s or ARGV[4] or #ARGV[2] > 17 then
  --#include layout.lua
  if not s and redis.call('EXISTS', KEYS[2]) == 0 then
    -- Deleted, or evicted. The word was ours all the same.
    s = EMPTY
  end
  if not s or not is_readable(s) then
    return 1
  end
  if #ARGV[2] > 17 then
    local _, kind, earlier, waiters = texts(s)
    s = with_texts(s, string.sub(ARGV[2], 18), kind, earlier, waiters)
  end
  local rests = ARGV[4] and ARGV[4] ~= '0'
  if rests then
    -- Before the other list, which would make it known already: each forgets at its own pace.
    s = bury(s, id)
  end
  if ARGV[5] then
    s = bury_deep(s, id)
  end
  if rests then
    s = '1' .. ARGV[2] .. string.sub(s, 3, 64) .. NOBODY .. string.sub(s, 73)
    -- A value that no script takes for a token. Nobody is woken: the word is not free yet.
    redis.pcall('SET', KEYS[1], 'lh:rest:' .. string.sub(s, 4, 19), 'PX', ARGV[4])
    redis.pcall('SET', KEYS[2], s, 'PX', string.format('%.0f', ARGV[3] + ARGV[4]))
    return 1
  end
elseif not string.find(s, '\n', 265, true) or not string.find(s, '^1%u%u%d%d') then
  -- Of a later layout, or somebody's data: it stays. The word is ours to free.
  redis.call('DEL', KEYS[1])
  return 1
end
local mark, grant = ARGV[2], string.sub(s, 3, 64)
if #mark > 1 then
  -- What it did not use of its tokens is free again.
  local last = string.sub(mark, 2, 17)
  mark, grant = string.sub(mark, 1, 1), string.sub(s, 3, 3) .. last .. last .. string.sub(s, 36, 64)
end
local released = '1' .. mark .. grant .. '--------' .. id .. string.sub(s, 73, 192)
  .. string.sub(s, 201)
if string.byte(s, -1) == 10 then
  -- The list of waiters, which comes last, is empty.
  redis.pcall('SET', KEYS[2], released, 'PX', ARGV[3])
else
  -- Nearly always the first of them has it. Entries begin at fixed places: layout.lua.
  local at = string.match(released, '^[^\n]*\n[^\n]*\n[^\n]*\n()', 265)
  local ends = at and string.find(released, ';', at + 69, true)
  if is_wanted and ends then
    --#include grant.lua
    local rest, clock = string.sub(released, at + 69, ends - 1), redis.call('TIME')
    local silent = clock[1] * 1000 + clock[2] / 1000 - (tonumber(string.sub(released, at + 55, at + 67)) or 0)
    if wish(rest) and silent < 5000 and silent > -5000 then
      local heard_by = give(KEYS[1], KEYS[2], released, clock, string.sub(released, at, at + 39), rest,
        string.sub(released, ends + 1))
      if heard_by == nil or heard_by and heard_by > 0 then
        return 1
      end
    end
  end
  --#include layout.lua
  if is_readable(released) then
    pass_on(KEYS[2], KEYS[1], released, ARGV[3])
  else
    redis.call('DEL', KEYS[1])
  end
end
return 1
