-- Acquire all: takes every word, or none. Where one is held nothing happens, but that a waiter who names itself is registered
-- there, and nowhere else: it holds nothing while it waits. One fencing token, above every earlier one of all the words. As
-- with one word, a repeated call is the same grant, and a token that was released or given up is refused for ever.
-- All that can fail comes before the first write, which is SET. Layout of the states: layout.lua.
-- KEYS  word and state of each
-- ARGV  1 token  2 ttl (ms)  3 label \n kind  4 lowest fencing token to give (16 digits)
--       5 how long to keep the states (ms)  6 ticket to register, if any  7 what else is on the list beside it
-- reply granted: fencing token (16 digits), mark, mark's token (16 digits) and mark's label, in one string: the worst of all;
--       {0, ms left, beginning of the holder's token, waiters, word} held; {-1} dead token;
--       {-2, which key} somebody's data; {-3, version} state of a later layout
--#include layout.lua
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
local states, free, held, ours, taken_by = {}, {}, nil, 0, nil
local last = ARGV[4]
for i = 1, #KEYS, 2 do
  local held_by = redis.pcall('GET', KEYS[i])
  if type(held_by) == 'table' then
    if string.find(held_by.err, 'WRONGTYPE', 1, true) then
      return {-2, KEYS[i]}
    end
    return held_by
  end
  local s = redis.pcall('GET', KEYS[i + 1])
  if type(s) == 'table' then
    if string.find(s.err, 'WRONGTYPE', 1, true) then
      return {-2, KEYS[i + 1]}
    end
    return s
  end
  states[i], free[i] = s, not held_by
  s = s or EMPTY
  if not is_readable(s) then
    local refused = refusal(s)
    return refused[1] == -2 and {-2, KEYS[i + 1]} or refused
  end
  if is_dead(s, id) then
    return {-1}
  end
  if held_by == token then
    if string.sub(s, 65, 72) == id then
      ours = ours + 1
    end
  elseif held_by and not held then
    held, taken_by = i, held_by
  end
  local after = string.format('%016.0f', string.sub(s, 4, 19) + 1)
  if after > last then
    last = after
  end
end
if held then
  local left = redis.call('PTTL', KEYS[held])
  if left == -1 then
    return {-2, KEYS[held]}
  end
  local list = {}
  if ARGV[6] then
    local now = server_ms()
    for i = 1, #KEYS, 2 do
      local s = states[i] or EMPTY
      local _, _, _, waiters = texts(s)
      local elsewhere = without_waiter(waiters, ARGV[6])
      if i == held then
        list = live_waiters(waiters, now)
        register(list, ARGV[6], now, ARGV[7])
        s = with_waiters(s, join_waiters(list, 0))
        -- May fail when memory is full: then the waiter finds the truth by polling.
        if states[i] then
          redis.pcall('SET', KEYS[i + 1], s, 'KEEPTTL')
        else
          redis.pcall('SET', KEYS[i + 1], s, 'PX', CLEAN_MS)
        end
        if elsewhere == waiters then
          warn_holder(s, KEYS[i])
        end
      elseif free[i] and elsewhere ~= '' then
        -- It may be the one that was told so, and it is of no use to it: the next one must be told.
        s = with_waiters(s, elsewhere)
        pass_on(KEYS[i + 1], KEYS[i], s, keep_ms(s))
      elseif elsewhere ~= waiters then
        -- It waited here before.
        redis.pcall('SET', KEYS[i + 1], with_waiters(s, elsewhere), 'KEEPTTL')
      end
    end
  end
  return {0, left, string.sub(taken_by, 1, 64), #list, KEYS[held]}
end
local t = redis.call('TIME')
local f = t[1] .. string.sub('00000' .. t[2], -6)
local since = string.sub(f, 1, 13)
if last > f then
  f = last
end
if #f ~= 16 then
  return redis.error_reply('ERR the clock of this server is off by decades')
end
local again = ours * 2 == #KEYS
if again then
  f = string.sub(states[1], 4, 19)
end
-- How much there is to be told of a predecessor.
local weight = {N = 0, C = 1, P = 2, A = 3}
local worst, told = 'N', 'N' .. string.rep('0', 16)
for i = 1, #KEYS, 2 do
  local s = states[i] or EMPTY
  local mark, mark_token = string.sub(s, 2, 2), string.sub(s, 20, 35)
  local label, _, earlier, waiters = texts(s)
  if string.sub(s, 65, 72) == id then
    -- From the first of repeated calls.
    mark, mark_token, label = string.sub(s, 3, 3), string.sub(s, 36, 51), earlier
  end
  if (weight[mark] or 0) > weight[worst] then
    worst, told = mark, mark .. mark_token .. label
  end
  local left = redis.call('PTTL', KEYS[i])
  if left < tonumber(ARGV[2]) then
    redis.call('SET', KEYS[i], token, 'PX', ARGV[2])
  end
  if not again then
    redis.call('SET', KEYS[i + 1], '1A' .. mark .. f .. f .. mark_token .. since .. id .. string.sub(s, 73, 264)
      .. ARGV[3] .. '\n' .. label .. '\n' .. (ARGV[6] and without_waiter(waiters, ARGV[6]) or waiters), 'PX', ARGV[5])
  end
end
return f .. told
