-- Release one lease of a table, and grant what has become possible. HDEL is the first write, so it works when memory is full.
-- Whatever comes of it, the token is dead from now on. Layout of the table: table.lua.
-- KEYS  1 table
-- ARGV  1 token  2 mark (C clean, P panicked, A abandoned)  3 not used  4 not used  5 '1' if the acquire was sent more than once
-- reply 1 released; 0 not ours
-- The short path has no functions: nobody waits and nothing has run out. All else takes the long one.
local id = string.sub(ARGV[1], 1, 8)
local read = redis.pcall('HMGET', KEYS[1], 's', 'x', 'h' .. ARGV[1])
if read[1] and read[2] and read[3] and not ARGV[5] then
  local s = read[1]
  local used, earliest, expires, others, phase = string.match(read[2], '^(%d+),(%d+),(%d+)(,%d+,(%a))$')
  local weight = string.match(read[3], '^%d+,(%d+),')
  local line_end = string.find(s, '\n', 265, true)
  line_end = line_end and string.find(s, '\n', line_end + 1, true)
  local dead_at = string.find(s, string.sub(id, 2), 73, true)
  if used and weight and line_end and string.find(s, '\n', line_end + 1, true) == #s and string.find(s, '^1%u%u%d%d')
    and not (dead_at and dead_at < 259) then
    local clock = redis.call('TIME')
    local now = tonumber(clock[1] .. string.sub(string.sub('00000' .. clock[2], -6), 1, 3))
    if now < tonumber(earliest) then
      redis.call('HDEL', KEYS[1], 'h' .. ARGV[1])
      if string.sub(s, 65, 72) == id then
        s = '1' .. ARGV[2] .. string.sub(s, 3, 64) .. '--------' .. id .. string.sub(s, 73, 192) .. string.sub(s, 201)
      else
        s = string.sub(s, 1, 72) .. id .. string.sub(s, 73, 192) .. string.sub(s, 201)
      end
      local mark, left, before = string.sub(s, 2, 2), math.max(0, used - weight), tonumber(expires)
      local stays = (phase == 'l' or mark == 'P' or mark == 'A') and 604800000 or 3600000
      local moves = before < now + stays or left == 0 and before > now + stays
      if moves then
        expires = string.format('%.0f', now + stays)
      end
      local x = left .. ',' .. earliest .. ',' .. expires .. others
      local set = redis.pcall('HSET', KEYS[1], 's', s, 'x', x)
      if type(set) == 'table' then
        return set
      end
      if moves then
        redis.call('PEXPIRE', KEYS[1], string.format('%.0f', stays))
      end
      return 1
    end
  end
end
--#include table.lua
local t, refused = open(ARGV[1], read)
if not t then
  return refused.err and refused or 0
end
purge(t)
local released = 1
if t.mine then
  take_lease(t, t.token, t.mine)
  if string.sub(t.s, 65, 72) == id then
    t.s = '1' .. ARGV[2] .. string.sub(t.s, 3, 64) .. NOBODY .. string.sub(t.s, 73)
  end
  t.s = bury(t.s, id)
  if ARGV[5] then
    t.s = bury_deep(t.s, id)
  end
elseif is_released(t.s, id) then
  return 1
else
  released = 0
  t.is_late = true
  t.s = bury(t.s, taken(id))
  if ARGV[5] then
    t.s = bury_deep(t.s, taken(id))
  end
end
serve(t)
return save(t, keep(t)) or released
