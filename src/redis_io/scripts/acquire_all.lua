-- Acquire all: takes every word, or none. Where one is held nothing happens, but that a waiter who names itself is registered
-- there, and nowhere else: it holds nothing while it waits. One fencing token, above every earlier one of all the words. As
-- with one word, a repeated call is the same grant, and a token that was released or given up is refused for ever.
-- All that can fail comes before the first write, which is SET. The common path reads all in two calls, and has no functions.
-- Layout of the states: layout.lua.
-- KEYS  word and state of each
-- ARGV  1 token  2 ttl (ms)  3 label \n kind  4 lowest fencing token to give (16 digits)
--       5 how long to keep the states (ms)  6 ticket to register, if any  7 what else is on the list beside it
-- reply granted: fencing token (16 digits), mark, mark's token (16 digits) and mark's label, in one string: the worst of all;
--       {0, ms left, beginning of the holder's token, waiters, word} held; {-1} dead token;
--       {-2, which key} somebody's data; {-3, version} state of a later layout
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
local EMPTY = '1NN' .. string.rep('0', 61) .. string.rep('-', 200) .. '\n\n\n'
local read = redis.pcall('MGET', unpack(KEYS))
if read.err then
  return read
end
-- To MGET, a key of another type is none. Who may not ask for all of these at once has them looked at one by one.
local missing = {}
for i = 1, #KEYS do
  if not read[i] then
    missing[#missing + 1] = KEYS[i]
  end
end
local strange = #missing > 0 and redis.pcall('EXISTS', unpack(missing)) ~= 0
local held, ours, last = nil, 0, ''
for i = 1, #KEYS, 2 do
  local held_by, s = read[i], read[i + 1] or EMPTY
  local line_end = string.find(s, '\n', 265, true)
  line_end = line_end and string.find(s, '\n', line_end + 1, true)
  line_end = line_end and string.find(s, '\n', line_end + 1, true)
  local dead_at = string.find(s, string.sub(id, 2), 73, true)
  if strange or not line_end or not string.find(s, '^1%u%u%d%d') or dead_at and dead_at < 259 then
    --#include layout.lua
    for k = i, i + 1 do
      local again = not read[k] and redis.pcall('GET', KEYS[k])
      if again and again.err then
        return string.find(again.err, 'WRONGTYPE', 1, true) and {-2, KEYS[k]} or again
      end
    end
    if not is_readable(s) then
      local refused = refusal(s)
      return refused[1] == -2 and {-2, KEYS[i + 1]} or refused
    end
    if is_dead(s, id) then
      return {-1}
    end
  end
  if held_by == token then
    if string.sub(s, 65, 72) == id then
      ours = ours + 1
    end
  elseif held_by and not held then
    held = i
  end
  local given = string.sub(s, 4, 19)
  if given > last then
    last = given
  end
end
if held then
  --#include layout.lua
  local left = redis.call('PTTL', KEYS[held])
  if left == -1 then
    return {-2, KEYS[held]}
  end
  local list = {}
  if ARGV[6] then
    local now = server_ms()
    for i = 1, #KEYS, 2 do
      local s = read[i + 1] or EMPTY
      local _, _, _, waiters = texts(s)
      local elsewhere = without_waiter(waiters, ARGV[6])
      if i == held then
        list = live_waiters(waiters, now)
        register(list, ARGV[6], now, ARGV[7])
        s = with_waiters(s, join_waiters(list, 0))
        -- May fail when memory is full: then the waiter finds the truth by polling.
        if read[i + 1] then
          redis.pcall('SET', KEYS[i + 1], s, 'KEEPTTL')
        else
          redis.pcall('SET', KEYS[i + 1], s, 'PX', CLEAN_MS)
        end
        if elsewhere == waiters then
          warn_holder(s, KEYS[i])
        end
      elseif not read[i] and elsewhere ~= '' then
        -- It may be the one that was told so, and it is of no use to it: the next one must be told.
        s = with_waiters(s, elsewhere)
        pass_on(KEYS[i + 1], KEYS[i], s, keep_ms(s))
      elseif elsewhere ~= waiters then
        -- It waited here before.
        redis.pcall('SET', KEYS[i + 1], with_waiters(s, elsewhere), 'KEEPTTL')
      end
    end
  end
  return {0, left, string.sub(read[held], 1, 64), #list, KEYS[held]}
end
local t = redis.call('TIME')
local f = t[1] .. string.sub('00000' .. t[2], -6)
local since = string.sub(f, 1, 13)
if last >= f or ARGV[4] > f then
  f = string.format('%016.0f', math.max(last + 1, ARGV[4]))
end
if #f ~= 16 then
  return redis.error_reply('ERR the clock of this server is off by decades')
end
local again = ours * 2 == #KEYS
if again then
  f = string.sub(read[2], 4, 19)
end
-- How much there is to be told of a predecessor: the further back in 'NCPA', the more.
local worst, told = 1, 'N' .. string.rep('0', 16)
for i = 1, #KEYS, 2 do
  local s = read[i + 1] or EMPTY
  local mark, mark_token = string.sub(s, 2, 2), string.sub(s, 20, 35)
  local label_end = string.find(s, '\n', 265, true)
  local label, waiters = string.sub(s, 265, label_end - 1), ''
  local is_again = string.sub(s, 65, 72) == id
  if is_again or string.byte(s, -1) ~= 10 then
    --#include layout.lua
    local _, _, earlier, all = texts(s)
    waiters = ARGV[6] and without_waiter(all, ARGV[6]) or all
    if is_again then
      -- From the first of repeated calls.
      mark, mark_token, label = string.sub(s, 3, 3), string.sub(s, 36, 51), earlier
    end
  end
  local rank = string.find('NCPA', mark, 1, true) or 1
  if rank > worst then
    worst, told = rank, mark .. mark_token .. label
  end
  if not read[i] or redis.call('PTTL', KEYS[i]) < tonumber(ARGV[2]) then
    redis.call('SET', KEYS[i], token, 'PX', ARGV[2])
  end
  if not again then
    redis.call('SET', KEYS[i + 1], '1A' .. mark .. f .. f .. mark_token .. since .. id .. string.sub(s, 73, 264)
      .. ARGV[3] .. '\n' .. label .. '\n' .. waiters, 'PX', ARGV[5])
  end
end
return f .. told
