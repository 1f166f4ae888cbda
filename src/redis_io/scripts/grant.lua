-- The grant of a free word to one who waits for it: what an acquire of his would have done, and the same reply, which he is sent.
-- So he has it when he hears of it, and need not ask. He has it for the time of his claim, in which he must renew it.

-- What he wants of the word: f fair mutex or m mutex, claim (ms), token, how many fencing tokens to reserve or 0, the lowest to
-- give, label \n kind (escaped). Nothing of one who is only woken.
local function wish(rest)
  return string.match(rest, '^([fm]),(%d+),(%x+),(%d+),(%d+),(.*)$')
end

-- How many hear it. An error (a user without rights on channels) counts for nobody.
local function publish(ticket, message)
  local heard_by = redis.pcall('PUBLISH', 'leasehold:inbox:' .. string.sub(ticket, 1, 32), string.sub(ticket, 33) .. message)
  return type(heard_by) == 'number' and heard_by or nil
end

-- `s` is the state as nobody holds it, `others` those who wait beside him. The word's old value is overwritten, so that no
-- other script sees it free. Returns how many hear of it; nothing if that can't be said; false if it could not be done.
local function give(word, state, s, clock, ticket, rest, others)
  local _, claim, token, block, floor, text = wish(rest)
  local f = clock[1] .. string.sub('00000' .. clock[2], -6)
  local since, last = string.sub(f, 1, 13), string.sub(s, 4, 19)
  if last >= f or floor > f then
    f = string.format('%016.0f', math.max(last + 1, floor))
  end
  local reply = f .. string.sub(s, 2, 2) .. string.sub(s, 20, 35)
  local label, reserved = string.match(s, '^[^\n]*', 265), f
  reply = reply .. label
  if block ~= '0' then
    reserved = string.format('%016.0f', f + block - 1)
    reply = reply .. '\n' .. (others ~= '' and '1' or '')
  end
  text = string.gsub(text, '%%(%x%x)', function(hex)
    return string.char(tonumber(hex, 16))
  end)
  local set = redis.pcall('SET', word, token, 'PX', claim)
  if set.err then
    return false
  end
  redis.pcall('SET', state, '1A' .. string.sub(s, 2, 2) .. reserved .. f .. string.sub(s, 20, 35) .. since
    .. string.sub(token, 1, 8) .. string.sub(s, 73, 264) .. text .. '\n' .. label .. '\n' .. others,
    'PX', string.format('%.0f', claim + 604800000))
  return publish(ticket, '+' .. string.format('%04d', #reply) .. reply .. word)
end
