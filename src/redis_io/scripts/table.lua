-- A table of leases in one key, for locks that several may hold at once: a hash with the fields
--   s        the state as in layout.lua, with those who wait at its end. Its holder is the one who has the lock alone
--   x        used,earliest,until,limit,phase: the sum of all weights; a time (ms) before which no lease runs out; when the key
--            expires (ms); a semaphore's limit, or 0; 'w' from a writer's lease to the next reader's, else 'r'; 'l' where the
--            limit was set by hand
--   h<token> a lease: its end (ms),weight,since (ms),fencing token (16 digits; zeros for a claim),label
-- Each lease has an end of its own by the server's clock. The key outlives them all. A lease that has run out counts no more,
-- and is taken out by whoever looks next. All reads come before the first write; the grants go out in one HSET at the end.
--#include layout.lua
local KEY = KEYS[1]
local NEVER = 9999999999999
local UNCLAIMED = string.rep('0', 16)

local function ms(n)
  return string.format('%.0f', n)
end

-- Makes a table of what was read: s, x and the token's lease. Returns nothing, and the reply, for what is no table of ours.
local function open(token, read)
  read = read or redis.pcall('HMGET', KEY, 's', 'x', 'h' .. token)
  if read.err then
    return nil, string.find(read.err, 'WRONGTYPE', 1, true) and {-2, KEY} or read
  end
  local s, x = read[1], read[2]
  if not s then
    if redis.call('EXISTS', KEY) == 1 then
      return nil, {-2, KEY}
    end
    s, x = EMPTY, '0,' .. ms(NEVER) .. ',0,0,r'
  end
  if not is_readable(s) then
    local refused = refusal(s)
    return nil, refused[1] == -2 and {-2, KEY} or refused
  end
  local used, earliest, expires, limit, phase = string.match(x or '', '^(%d+),(%d+),(%d+),(%d+),(%a)$')
  if not used then
    return nil, {-2, KEY}
  end
  local t = {token = token, s = s, used = tonumber(used), earliest = tonumber(earliest), expires = tonumber(expires),
    limit = tonumber(limit), phase = phase, mine = read[3], now = server_ms(), is_new = not read[1], fields = {}}
  return t
end

-- Takes the list of those who wait apart, which not every call needs.
local function list_waiters(t)
  if not t.list then
    local _, _, _, waiters = texts(t.s)
    t.list = live_waiters(waiters, t.now)
  end
end

-- Takes out what has run out.
local function purge(t)
  if t.now < t.earliest then
    return
  end
  local all = redis.call('HGETALL', KEY)
  t.used, t.earliest, t.dirty = 0, NEVER, true
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == 'h' then
      local ends, weight = string.match(all[i + 1], '^(%d+),(%d+),')
      ends = tonumber(ends)
      if ends <= t.now then
        redis.call('HDEL', KEY, all[i])
        if all[i] == 'h' .. t.token then
          t.mine = false
        end
      else
        t.used = t.used + tonumber(weight)
        t.earliest = math.min(t.earliest, ends)
      end
    end
  end
end

local function put_lease(t, token, ends, weight, since, fencing, label)
  local lease = table.concat({ms(ends), ms(weight), since, fencing, label}, ',')
  t.fields[#t.fields + 1] = 'h' .. token
  t.fields[#t.fields + 1] = lease
  t.earliest = math.min(t.earliest, ends)
  if token == t.token then
    t.mine = lease
  end
end

local function take_lease(t, token, lease)
  redis.call('HDEL', KEY, 'h' .. token)
  t.used = math.max(0, t.used - tonumber(string.match(lease, '^%d+,(%d+),')))
end

local function want(w)
  return string.match(w[4], '^(%w*)')
end

local function is_alone(t)
  return t.phase == 'w' and t.used > 0
end

-- Gives one who waits a lease for the time of his claim, if he is reached. One who is not keeps his place, and is passed over
-- this time.
local function give(t, w, weight)
  t.dirty = true
  local claim, token = string.match(w[4], ',(%d+),(%x+)$')
  if not claim or tell(w[1], KEY) == 0 then
    return false
  end
  if t.limit == 0 then
    t.phase = want(w) == 'w' and 'w' or 'r'
  end
  t.used = t.used + weight
  put_lease(t, token, t.now + tonumber(claim), weight, ms(t.now), UNCLAIMED, '')
  return true
end

-- Lets in those of a kind who wait, in order, but no more than `most`. Returns how many came.
local function let_in(t, kind, most)
  local left, came = {}, 0
  for _, w in ipairs(t.list) do
    if came < most and want(w) == kind and give(t, w, 1) then
      came = came + 1
    else
      left[#left + 1] = w
    end
  end
  t.list = left
  return came
end

-- Readers and writers: a writer waits for all, and lets no new reader pass; after a writer all readers that wait enter together,
-- whoever came first. One who has read and wants to write goes before all, once he is the last.
local function serve_rw(t)
  if is_alone(t) then
    return
  end
  local waits = {}
  for _, w in ipairs(t.list) do
    local kind = want(w)
    waits[kind] = waits[kind] or w
  end
  if waits.x and (t.used <= 1 or t.opening) then
    -- It is his turn, or his lease is gone; then he is in nobody's way.
    t.dirty = true
    tell(waits.x[1], KEY)
  end
  if t.used > 0 then
    if t.opening or not waits.x and not waits.w then
      let_in(t, 'r', math.huge)
    end
  elseif t.phase == 'w' or not waits.w then
    if let_in(t, 'r', math.huge) == 0 then
      let_in(t, 'w', 1)
    end
  elseif let_in(t, 'w', 1) == 0 then
    let_in(t, 'r', math.huge)
  end
end

-- Permits: in order, for as long as there are enough for the first. One who wants more than there are in all loses his place,
-- and learns the reason when he asks.
local function serve_permits(t)
  local left, enough = {}, true
  for _, w in ipairs(t.list) do
    local n = tonumber(want(w)) or 1
    if n > t.limit then
      t.dirty = true
      tell(w[1], KEY)
    else
      enough = enough and t.used + n <= t.limit
      if not enough or not give(t, w, n) then
        left[#left + 1] = w
      end
    end
  end
  t.list = left
end

-- Gives leases to those whose turn it is.
local function serve(t)
  list_waiters(t)
  if #t.list == 0 then
    return
  elseif t.limit > 0 then
    serve_permits(t)
  else
    serve_rw(t)
  end
end

-- Makes a lease of a claim, or of nothing; of a lease (the reply was lost, and the call is repeated) the same again, re-armed.
-- Returns the reply: fencing token, mark, mark's token and mark's label. One who has it alone leaves a mark until he releases.
local function grant(t, px, weight, text, floor, alone)
  local id = string.sub(t.token, 1, 8)
  local ends, since, f = t.now + px, ms(t.now), UNCLAIMED
  if t.mine then
    local until_now
    until_now, since, f = string.match(t.mine, '^(%d+),%d+,(%d+),(%d+),')
    ends = math.max(ends, tonumber(until_now))
  else
    t.used = t.used + weight
  end
  local is_fresh = f == UNCLAIMED
  if is_fresh then
    local clock = redis.call('TIME')
    f = clock[1] .. string.sub('00000' .. clock[2], -6)
    local last = string.sub(t.s, 4, 19)
    if last >= f or floor > f then
      f = string.format('%016.0f', math.max(last + 1, floor))
    end
  end
  local label, kind, earlier, waiters = texts(t.s)
  local mark, mark_token = string.sub(t.s, 2, 2), string.sub(t.s, 20, 35)
  if alone then
    if string.sub(t.s, 65, 72) == id then
      mark, mark_token, label = string.sub(t.s, 3, 3), string.sub(t.s, 36, 51), earlier
      if is_fresh then
        -- The first of these calls granted a lease that has run out; nobody came in between.
        t.s = string.sub(t.s, 1, 3) .. f .. f .. string.sub(t.s, 36)
      end
    else
      t.s = '1A' .. mark .. f .. f .. mark_token .. ms(t.now) .. id .. string.sub(t.s, 73, 264)
        .. text .. '\n' .. label .. '\n' .. waiters
    end
    t.phase = 'w'
  else
    if is_fresh then
      t.s = string.sub(t.s, 1, 3) .. f .. string.sub(t.s, 20)
    end
    if t.limit == 0 then
      t.phase = 'r'
    end
  end
  put_lease(t, t.token, ends, weight, since, f, string.match(text, '^[^\n]*'))
  return f .. mark .. mark_token .. label
end

-- By its token, too: one who does not name his ticket now, because he can't be told just then, would be given a lease in place
-- of the one that he has.
local function take_off(t, ticket)
  list_waiters(t)
  for i, w in ipairs(t.list) do
    if w[1] == ticket or string.match(w[4], '%x+$') == t.token then
      table.remove(t.list, i)
      return
    end
  end
end

local function keep(t)
  return t.phase == 'l' and MARKED_MS or keep_ms(t.s)
end

-- Writes what has changed. The key is wanted for `px` from now on; it never gets less than it had while anybody has a lease.
-- Returns nothing, or the reply if it could not. `may_fail`: it matters little, and can be left when memory is full.
local function save(t, px, may_fail)
  local expires = t.now + px
  if t.used > 0 then
    expires = math.max(expires, t.expires)
  end
  local fields = t.fields
  fields[#fields + 1] = 's'
  fields[#fields + 1] = t.list and with_waiters(t.s, join_waiters(t.list, 0)) or t.s
  fields[#fields + 1] = 'x'
  fields[#fields + 1] = table.concat({ms(t.used), ms(t.earliest), ms(expires), ms(t.limit), t.phase}, ',')
  if t.is_new and not t.is_late then
    -- Never does anything, but is refused when memory is full, as the next command is not.
    local set = redis.pcall('SET', KEY, '', 'XX')
    if type(set) == 'table' and set.err then
      return not (may_fail and string.find(set.err, 'OOM', 1, true)) and set or nil
    end
  end
  if t.is_new or t.is_late then
    -- Whether we may: no key is made that could then get no ttl. And allowed when memory is full, which lets all that
    -- follows be, too.
    redis.call('PEXPIRE', KEY, ms(expires - t.now))
  end
  for i = 1, #fields, 1000 do
    local set = redis.pcall('HSET', KEY, unpack(fields, i, math.min(i + 999, #fields)))
    if type(set) == 'table' then
      return not (may_fail and string.find(set.err, 'OOM', 1, true)) and set or nil
    end
  end
  if t.is_new or expires ~= t.expires and not t.is_late then
    redis.call('PEXPIRE', KEY, ms(expires - t.now))
  end
  return nil
end

-- The reply to one who must wait.
local function held(t)
  return {0, math.max(0, math.min(t.earliest - t.now, 86400000)), '', t.list and #t.list or 0}
end
