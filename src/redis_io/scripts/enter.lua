-- The short path into a table (table.lua): nobody waits, nothing has run out, and there is room. It comes to the same as the long
-- path, but has no functions and few calls: each of these costs, and the definitions of table.lua alone cost as much as two
-- calls. It writes only where the table is there; whatever else is unusual is left to the long path, which need not read again.
local read = redis.pcall('HMGET', KEYS[1], 's', 'x', 'h' .. ARGV[1])
if read[1] and read[2] and not read[3] then
  local s = read[1]
  local used, earliest, expires, limit, phase = string.match(read[2], '^(%d+),(%d+),(%d+),(%d+),(%a)$')
  local label_end = string.find(s, '\n', 265, true)
  local kind_end = label_end and string.find(s, '\n', label_end + 1, true)
  -- The third line end is the last character where nobody waits.
  local no_waiters = kind_end and string.find(s, '\n', kind_end + 1, true) == #s
  local weight, enters, alone = 1, false, ARGV[8] == 'w'
  if limit == '0' then
    enters = used == '0' and alone or ARGV[8] == 'r' and (used == '0' or phase ~= 'w')
  elseif limit then
    weight = tonumber(ARGV[8]) or 0
    enters = weight > 0 and used + weight <= tonumber(limit) and (ARGV[10] or limit == ARGV[9])
  end
  if enters and no_waiters and string.find(s, '^1%u%u%d%d') then
    local clock = redis.call('TIME')
    local f = clock[1] .. string.sub('00000' .. clock[2], -6)
    local since, id = string.sub(f, 1, 13), string.sub(ARGV[1], 1, 8)
    local now, dead_at = tonumber(since), string.find(s, string.sub(id, 2), 73, true)
    if now < tonumber(earliest) and string.sub(s, 4, 19) < f and ARGV[4] <= f and not (dead_at and dead_at < 259)
      and not (alone and string.sub(s, 65, 72) == id) then
      local mark, mark_token, label = string.sub(s, 2, 2), string.sub(s, 20, 35), string.sub(s, 265, label_end - 1)
      local px = tonumber(ARGV[2])
      local ends, stays = now + px, px + 3600000
      if alone then
        s = '1A' .. mark .. f .. f .. mark_token .. since .. id .. string.sub(s, 73, 264) .. ARGV[3] .. '\n' .. label .. '\n'
        phase, stays = 'w', tonumber(ARGV[5])
      else
        s = string.sub(s, 1, 3) .. f .. string.sub(s, 20)
        if limit == '0' then
          phase = 'r'
        end
        if phase == 'l' or mark == 'P' or mark == 'A' then
          stays = px + 604800000
        end
      end
      local moves = tonumber(expires) < now + stays
      if moves then
        expires = string.format('%.0f', now + stays)
      end
      local ends_at = string.format('%.0f', ends)
      local x = used + weight .. ',' .. (ends < tonumber(earliest) and ends_at or earliest) .. ',' .. expires .. ',' .. limit .. ','
        .. phase
      local lease = ends_at .. ',' .. weight .. ',' .. since .. ',' .. f .. ',' .. string.match(ARGV[3], '^[^\n]*')
      local set = redis.pcall('HSET', KEYS[1], 'h' .. ARGV[1], lease, 's', s, 'x', x)
      if type(set) == 'table' then
        return set
      end
      if moves then
        redis.call('PEXPIRE', KEYS[1], string.format('%.0f', stays))
      end
      return f .. mark .. mark_token .. label
    end
  end
end
