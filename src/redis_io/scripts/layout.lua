-- The state of a word: all that is kept beside the lock itself, packed in one string because each redis.call costs more
-- than taking a string apart. Fixed places first, so that the common path needs no pattern matching:
--   1       layout version, '1'
--   2       mark: what the next holder learns if the word is free: N none, C clean, P panicked, A abandoned.
--           A holder's own mark is A until it releases: one that dies leaves it
--   3       earlier mark: what the present holder learned; put back if the holder never got the lock
--   4-19    last fencing token
--   20-35   mark's fencing token
--   36-51   earlier mark's fencing token
--   52-64   since when it is held (ms, server time)
--   65-72   holder: the first 8 digits of the word's value, or 8 '-'
--   73-200  the last 16 dead tokens, 8 digits each, newest first, filled up with '-': no acquire may carry them again.
--           One that was not released but taken away, or found gone, has 'x' for its first digit: a release that is
--           repeated must not hear "released" of it
--   201-264 the last 8 dead tokens whose acquire may still be on its way: one that was sent twice, or given up. Apart
--           from the others, because a busy lock fills those up in milliseconds. A fresh token that begins like a dead
--           one, one in a million, is refused, and its client takes another
--   265-    label \n kind \n earlier label \n waiters (inbox and ticket,arrived ms,heard ms; in order of arrival)
local NOBODY = '--------'
local EMPTY = '1NN' .. string.rep('0', 61) .. NOBODY .. string.rep('-', 192) .. '\n\n\n'
local SILENT_MS = 5000
local CLEAN_MS = 3600000
local MARKED_MS = 604800000

local function is_readable(s)
  return string.find(s, '^1%u%u%d%d') ~= nil and string.find(s, '^[^\n]*\n[^\n]*\n[^\n]*\n', 265) ~= nil
end

-- The reply about a state that we can't read.
local function refusal(s)
  local version = string.match(s, '^([2-9a-z])%u%u%d%d')
  if version then
    return {-3, version}
  end
  return {-2, 'state'}
end

-- label, kind, earlier label, waiters
local function texts(s)
  return string.match(s, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$', 265)
end

local function with_texts(s, label, kind, earlier, waiters)
  return string.sub(s, 1, 264) .. label .. '\n' .. kind .. '\n' .. earlier .. '\n' .. waiters
end

local function with_waiters(s, waiters)
  local label, kind, earlier = texts(s)
  return with_texts(s, label, kind, earlier, waiters)
end

local function is_dead(s, id)
  return string.find(string.sub(s, 73, 264), string.sub(id, 2), 1, true) ~= nil
end

local function bury(s, id)
  if is_dead(s, id) then
    return s
  end
  return string.sub(s, 1, 72) .. id .. string.sub(s, 73, 192) .. string.sub(s, 201)
end

local function bury_deep(s, id)
  if string.find(string.sub(s, 201, 264), string.sub(id, 2), 1, true) then
    return s
  end
  return string.sub(s, 1, 200) .. id .. string.sub(s, 201, 256) .. string.sub(s, 265)
end

local function taken(id)
  return 'x' .. string.sub(id, 2)
end

-- Writes the state; one that is there keeps its ttl if `keep` says so. Not even full memory keeps it from being written: a
-- script may go on writing once it has written anything, and setting a ttl, be it on what is not there, is always allowed.
local function store(state_key, s, px, keep)
  local left = redis.call('PTTL', state_key)
  if left > 0 and keep then
    px = left
  end
  redis.call('PEXPIRE', state_key, px)
  redis.pcall('SET', state_key, s, 'PX', px)
end

-- How long a state must be kept once nobody holds the word.
local function keep_ms(s)
  local mark = string.sub(s, 2, 2)
  if mark == 'P' or mark == 'A' then
    return MARKED_MS
  end
  return CLEAN_MS
end

local function server_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function without_waiter(waiters, who)
  if who == '' then
    return waiters
  end
  return (string.gsub(waiters, who .. ',%d+,%d+;', ''))
end

-- Those who were heard of lately, in order of arrival.
local function live_waiters(waiters, now)
  local list = {}
  for who, arrived, heard in string.gmatch(waiters, '(%x+),(%d+),(%d+);') do
    if tonumber(heard) >= now - SILENT_MS then
      list[#list + 1] = {who, arrived, heard}
    end
  end
  return list
end

local function join_waiters(list, all_but)
  local out = {}
  for i, w in ipairs(list) do
    if i ~= all_but then
      out[#out + 1] = table.concat(w, ',') .. ';'
    end
  end
  return table.concat(out)
end

-- Writes the state and wakes the longest waiter that hears it. The message comes after the write that it must not undo,
-- and may fail: a user without rights on channels must still be able to release. A waiter that nobody delivers to keeps
-- its place until it has been silent for too long, because it may be reconnecting.
local function store_and_wake(state_key, word, s, px)
  local _, _, _, waiters = texts(s)
  local list = live_waiters(waiters, server_ms())
  redis.pcall('SET', state_key, with_waiters(s, join_waiters(list, 1)), 'PX', px)
  for i, w in ipairs(list) do
    local heard_by = redis.pcall('PUBLISH', 'leasehold:inbox:' .. string.sub(w[1], 1, 32), word)
    if type(heard_by) == 'number' and heard_by > 0 then
      if i > 1 then
        redis.pcall('SET', state_key, with_waiters(s, join_waiters(list, i)), 'PX', px)
      end
      return
    end
  end
  if #list > 0 then
    redis.pcall('SET', state_key, with_waiters(s, join_waiters(list, 0)), 'PX', px)
  end
end
