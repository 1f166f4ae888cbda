-- Acquire. Free: the word becomes ours, with a ttl from its first moment on, and a fencing token above every earlier one.
-- Ours already (the reply was lost, the call is repeated): re-armed in full, the same token again. Somebody else's:
-- nothing happens, but that a waiter who names itself is registered in the same breath, so that no release can fall
-- between the failed try and the registration. A token that was released or given up is refused for ever.
-- All that can fail comes before the first write, which is SET: so a server that is out of memory, or a user that lacks a
-- right, is refused before anything has changed; of a word that somebody holds a full server says so all the same, because
-- waiting for memory and waiting for a holder differ. The common path has four calls and no functions, and numbers of 16
-- digits stay strings and are compared as such: each of these costs. Layout of the state: layout.lua.
-- KEYS  1 word  2 state
-- ARGV  1 token  2 ttl (ms)  3 label \n kind  4 lowest fencing token to give (16 digits)
--       5 how long to keep the state (ms)  6 ticket to register, if any  7 what else is on the list beside it
--       8 how many fencing tokens to reserve, if more than one: for a holder that may hand the lock over by itself
-- reply granted: fencing token (16 digits), mark, mark's token (16 digits) and mark's label, in one string; where more than
--       one token was reserved also a line break, and '1' if others wait;
--       {0, ms left, beginning of the holder's token, waiters or 0 if they were not counted, '', last fencing token} held; {-1} dead token; {-2, which key} somebody's data;
--       {-3, version} state of a later layout
local s = redis.call('GET', KEYS[2])
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
local found = s
local eol = 265
if s then
  eol = string.find(s, '\n', 265, true)
  if not eol or not string.find(s, '^1%u%u%d%d') then
    --#include layout.lua
    return refusal(s)
  end
  -- Only among the dead: those who queue have their tokens further on.
  local at = string.find(s, string.sub(id, 2), 73, true)
  if at and at < 259 then
    return {-1}
  end
else
  s = '1NN' .. string.rep('0', 61) .. string.rep('-', 200) .. '\n\n\n'
end
local t = redis.call('TIME')
local f = t[1] .. string.sub('00000' .. t[2], -6)
local since, last = string.sub(f, 1, 13), string.sub(s, 4, 19)
if last >= f or ARGV[4] > f then
  f = string.format('%016.0f', math.max(last + 1, ARGV[4]))
end
if #f ~= 16 then
  return redis.error_reply('ERR the clock of this server is off by decades')
end
local mark, mark_token = string.sub(s, 2, 2), string.sub(s, 20, 35)
local label = string.sub(s, 265, eol - 1)
local set = redis.pcall('SET', KEYS[1], token, 'NX', 'PX', ARGV[2])
if not set or set.err then
  --#include layout.lua
  local full = set and string.find(set.err, 'OOM', 1, true)
  if set and not full then
    return set
  end
  local held_by = redis.call('GET', KEYS[1])
  if full and not held_by then
    return set
  end
  local left = redis.call('PTTL', KEYS[1])
  if held_by ~= token then
    if left == -1 then
      return {-2, 'word'}
    end
    local waiting = 0
    if ARGV[6] and ARGV[6] ~= '' then
      if not is_readable(s) then
        return refusal(s)
      end
      local now = server_ms()
      local registered = with_heard(s, ARGV[6], ARGV[7], now)
      local is_new = not registered
      if is_new then
        local _, _, _, all = texts(s)
        local list = live_waiters(all, now)
        register(list, ARGV[6], now, ARGV[7])
        registered, waiting = with_waiters(s, join_waiters(list, 0)), #list
      end
      -- May fail when memory is full: then the waiter finds the truth by polling.
      if found then
        redis.pcall('SET', KEYS[2], registered, 'KEEPTTL')
      else
        redis.pcall('SET', KEYS[2], registered, 'PX', CLEAN_MS)
      end
      if is_new then
        warn_holder(s, KEYS[1])
      end
    end
    return {0, left, string.sub(held_by, 1, 64), waiting, '', last}
  end
  -- Never shorter: this may be the late copy of a call whose lease has been extended since.
  if left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  if string.sub(s, 65, 72) == id then
    -- Who was given it has a state that is kept for less.
    if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[5]) then
      redis.call('PEXPIRE', KEYS[2], ARGV[5])
    end
    local _, _, earlier, others = texts(s)
    local reserved = ARGV[8] and string.sub(s, 4, 19) ~= string.sub(s, 20, 35)
    return string.sub(s, 20, 35) .. string.sub(s, 3, 3) .. string.sub(s, 36, 51) .. earlier
      .. (reserved and '\n' .. (others ~= '' and '1' or '') or '')
  end
  -- Our word, but its state is gone: somebody deleted it. A new one, with a new fencing token.
end
local waiters = ''
if string.byte(s, -1) ~= 10 then
  -- Somebody waits; if it is us, no longer, also if we don't name ourselves now: who is left on the list with a token would be
  -- given the word once more.
  waiters = string.match(s, '([^\n]*)$', 265)
  local from = ARGV[6] and ARGV[6] ~= '' and string.find(waiters, ARGV[6] .. ',', 1, true)
  if from then
    local to = string.find(waiters, ';', from, true)
    waiters = string.sub(waiters, 1, from - 1) .. string.sub(waiters, to + 1)
  elseif string.find(waiters, token, 1, true) then
    waiters = string.gsub(waiters, '[^;]*,' .. token .. '[^;]*;', '')
  end
end
local reply, reserved = f .. mark .. mark_token .. label, f
if ARGV[8] then
  reserved = string.format('%016.0f', f + ARGV[8] - 1)
  reply = reply .. '\n' .. (waiters ~= '' and '1' or '')
end
redis.call('SET', KEYS[2], '1A' .. mark .. reserved .. f .. mark_token .. since .. id .. string.sub(s, 73, 264)
  .. ARGV[3] .. '\n' .. label .. '\n' .. waiters, 'PX', ARGV[5])
return reply
