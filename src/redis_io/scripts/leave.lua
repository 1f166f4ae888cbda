-- Leave: ends a wait that came to nothing. Takes the inbox off the list; if a token is named, an acquire of it may have been
-- carried out unseen, or may still be: its word is freed, the mark put back that it found, and the token is dead. If the
-- word is free then, the next waiter is woken: the wake may have come to the one who leaves.
-- KEYS  1 word  2 state
-- ARGV  1 token, or ''  2 inbox and ticket, or ''
-- reply {1} left; {-2, which key} somebody's data; {-3, version} state of a later layout
--#include layout.lua
local found = redis.pcall('GET', KEYS[2])
local held_by = redis.pcall('GET', KEYS[1])
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)
if type(held_by) == 'table' and not string.find(held_by.err, 'WRONGTYPE', 1, true) then
  -- Rights, a replica: that says nothing about the word, and is the reply.
  return held_by
end
if token ~= '' and held_by == token then
  redis.call('DEL', KEYS[1])
  held_by = false
end
if type(found) == 'table' then
  return {-2, 'state'}
elseif found and not is_readable(found) then
  return refusal(found)
end
local s = found or EMPTY
if token ~= '' then
  s = bury_deep(s, id)
  if string.sub(s, 65, 72) == id then
    -- What the holder had learned is to be learned again; nobody has had the lock in between, as far as is known.
    local _, kind, earlier, waiters = texts(s)
    local mark, mark_token = string.sub(s, 3, 3), string.sub(s, 36, 51)
    s = '1' .. mark .. 'N' .. string.sub(s, 4, 19) .. mark_token .. string.rep('0', 16) .. string.sub(s, 52, 64)
      .. NOBODY .. string.sub(s, 73)
    s = with_texts(s, earlier, kind, '', waiters)
  end
end
local _, _, _, waiters = texts(s)
s = with_waiters(s, without_waiter(waiters, ARGV[2]))
if not held_by and string.byte(s, -1) ~= 10 then
  -- Its first write, allowed even when memory is full: then the others are, too.
  redis.call('PEXPIRE', KEYS[2], keep_ms(s))
  store_and_wake(KEYS[2], KEYS[1], s, keep_ms(s))
elseif s ~= (found or EMPTY) then
  store(KEYS[2], s, keep_ms(s), held_by)
end
return {1}
