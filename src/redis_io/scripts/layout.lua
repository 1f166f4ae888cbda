-- The state of a word: all that is kept beside the lock itself, packed in one string because each redis.call costs more
-- than taking a string apart. Fixed places first, so that the common path needs no pattern matching:
--   1       layout version, '1'
--   2       mark: what the next holder learns if the word is free: N none, C clean, P panicked, A abandoned.
--           A holder's own mark is A until it releases: one that dies leaves it
--   3       earlier mark: what the present holder learned; put back if the holder never got the lock
--   4-19    last fencing token, given or reserved: a holder may hand the lock over among its own threads, each with a token
--           of its own, and gives back what it did not use
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
--   265-    label \n kind (and, after a tab, the inbox of a holder that wants to hear of others that wait) \n earlier label \n
--           waiters, in order of arrival: ticket,arrived ms,heard ms,want,claim ms,token[,more];
--           A ticket is the inbox that the waiter reads (32 digits) and the number of its wait (8 digits). Want is empty
--           for one that is woken and then tries for itself; otherwise it is given the lock, under its token and for the
--           time of its claim, within which it must come for it: f fair mutex and m mutex (what more there is: grant.lua),
--           r read, w write, x upgrade, a number of permits
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
  local label = string.find(s, '\n', 265, true)
  local kind = string.find(s, '\n', label + 1, true)
  local earlier = string.find(s, '\n', kind + 1, true)
  return string.sub(s, 265, label - 1), string.sub(s, label + 1, kind - 1), string.sub(s, kind + 1, earlier - 1),
    string.sub(s, earlier + 1)
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

-- Whether it is dead because it was given back: of one that was taken away the first digit differs.
local function is_released(s, id)
  return string.find(string.sub(s, 73, 264), id, 1, true) ~= nil
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

-- A state as it was before the grant to `id`, if that is the present one: nobody has had the lock in between, as far as is
-- known, so what the holder had learned is to be learned again.
local function without_grant(s, id)
  if string.sub(s, 65, 72) ~= id then
    return s
  end
  local _, kind, earlier, waiters = texts(s)
  local mark, mark_token = string.sub(s, 3, 3), string.sub(s, 36, 51)
  s = '1' .. mark .. 'N' .. string.sub(s, 4, 19) .. mark_token .. string.rep('0', 16) .. string.sub(s, 52, 64)
    .. NOBODY .. string.sub(s, 73)
  return with_texts(s, earlier, kind, '', waiters)
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

local function without_waiter(waiters, ticket)
  if ticket == '' then
    return waiters
  end
  local from = string.find(waiters, ticket .. ',', 1, true)
  local to = from and string.find(waiters, ';', from, true)
  return to and string.sub(waiters, 1, from - 1) .. string.sub(waiters, to + 1) or waiters
end

-- The state with the note that this waiter was heard of, if it stands on the list as it says and has not been silent for too
-- long. That is what nearly every look of a waiter comes to, and with a crowd it must not take the list apart, nor go through
-- it: with 1,000 on it that alone took half a core more.
local function with_heard(s, ticket, rest, now)
  local at = string.find(s, ticket, 265, true)
  local heard = at and string.match(s, '^,%d%d%d%d%d%d%d%d%d%d%d%d%d,(%d%d%d%d%d%d%d%d%d%d%d%d%d),', at + 40)
  if heard and tonumber(heard) >= now - SILENT_MS and string.sub(s, at + 69, at + 69 + #rest) == rest .. ';' then
    return string.sub(s, 1, at + 54) .. string.format('%.0f', now) .. string.sub(s, at + 68)
  end
  return nil
end

-- Those who were heard of lately, in order of arrival: {ticket, arrived, heard, the rest, all of it as it stands there}. Each
-- of those who wait looks once a second, and this is what that costs: so no patterns where all is in its usual place.
local function live_waiters(waiters, now)
  local list, oldest, from = {}, now - SILENT_MS, 1
  local to = string.find(waiters, ';', from, true)
  while to do
    local all = string.sub(waiters, from, to)
    local w
    if string.byte(all, 41) == 44 and string.byte(all, 55) == 44 and string.byte(all, 69) == 44 then
      w = {string.sub(all, 1, 40), string.sub(all, 42, 54), string.sub(all, 56, 68), string.sub(all, 70, -2), all}
    else
      w = {string.match(all, '(%x+),(%d+),(%d+),([^;]*);$')}
    end
    local heard = tonumber(w[3])
    -- One that was heard of later than now: the clock was set back, which must not keep a dead one for as long.
    if heard and heard >= oldest and heard <= now + SILENT_MS then
      list[#list + 1] = w
    end
    from = to + 1
    to = string.find(waiters, ';', from, true)
  end
  return list
end

-- Puts the waiter on the list, or notes that it was heard of: it keeps its place then.
local function register(list, ticket, now, rest)
  local now_text = string.format('%.0f', now)
  for _, w in ipairs(list) do
    if w[1] == ticket then
      w[3], w[4], w[5] = now_text, rest, nil
      return
    end
  end
  list[#list + 1] = {ticket, now_text, now_text, rest}
end

local function join_waiters(list, all_but)
  local out = {}
  for i, w in ipairs(list) do
    if i ~= all_but then
      out[#out + 1] = w[5] or table.concat(w, ',', 1, 4) .. ';'
    end
  end
  return table.concat(out)
end

--#include grant.lua
-- How many hear that the word is free, or has become theirs.
local function tell(ticket, word)
  return publish(ticket, '=' .. word)
end

-- A holder that hands the lock over among its own threads must know that others wait. If it does not hear of it, it goes on so
-- for a while, and no longer.
local function warn_holder(s, word)
  local _, kind = texts(s)
  local inbox = string.match(kind, '\t(%x+)$')
  if inbox then
    publish(inbox .. 'ffffffff', '!' .. word)
  end
end

-- The word is free, or ours to free: lets the longest waiter that hears it have it, or, of those who try for themselves, know
-- that it is free; one of those keeps his place no longer. Up to `me`, if that is named, and then only those who queue; the word
-- is nobody's then. `s` is the state as nobody holds it; it is written, to be kept for `px`. Returns whether somebody has the
-- word now. A waiter that nobody delivers to keeps its place until it has been silent for too long, because it may be
-- reconnecting. Messages may fail: a user without rights on channels must still be able to release.
local function pass_on(state, word, s, px, me)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local _, _, _, waiters = texts(s)
  local list = live_waiters(waiters, now)
  local left, given = 0, false
  for i, w in ipairs(list) do
    if w[1] == me then
      break
    end
    local want = wish(w[4])
    if want == 'f' or want and not me then
      local heard_by = give(word, state, s, clock, w[1], w[4], join_waiters(list, i))
      if heard_by == false and not me then
        -- Memory is full. Once something has been deleted it does not matter any more.
        redis.call('DEL', word)
        heard_by = give(word, state, s, clock, w[1], w[4], join_waiters(list, i))
      end
      if heard_by == false then
        break
      end
      -- Where we may not publish he finds out when he looks next. Left free, whoever is at it all the time would have it first.
      if heard_by ~= 0 then
        return true
      end
      given = true
    elseif not want and not me then
      local heard_by = tell(w[1], word)
      if heard_by and heard_by > 0 then
        left = i
        break
      end
    end
  end
  if me and not given then
    return false
  end
  redis.call('DEL', word)
  redis.pcall('SET', state, with_waiters(s, join_waiters(list, left)), 'PX', px)
  return false
end
