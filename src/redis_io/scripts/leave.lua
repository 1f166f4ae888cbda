-- Leave: ends a wait that came to nothing. Takes the ticket off the list; if a token is named, an acquire of it may have been
-- carried out unseen, or may still be: its word is freed, the mark put back that it found, and the token is dead. If the
-- word is free then, the next waiter has it: the wake may have come to the one who leaves. Of several words, each.
-- KEYS  word and state of each
-- ARGV  1 token, or ''  2 ticket, or ''  3 '1' if no acquire of the token is under way: then it need not be remembered
-- reply {1} left; {-2, which key} somebody's data; {-3, version} state of a later layout
--#include layout.lua
local token, id = ARGV[1], string.sub(ARGV[1], 1, 8)

local function leave(word, state)
  local found = redis.pcall('GET', state)
  local held_by = redis.pcall('GET', word)
  if type(held_by) == 'table' and not string.find(held_by.err, 'WRONGTYPE', 1, true) then
    -- Rights, a replica: that says nothing about the word, and is the reply.
    return held_by
  end
  if token ~= '' and held_by == token then
    redis.call('DEL', word)
    held_by = false
  end
  if type(found) == 'table' then
    return {-2, 'state'}
  elseif found and not is_readable(found) then
    return refusal(found)
  end
  local s = found or EMPTY
  if token ~= '' then
    if not ARGV[3] then
      s = bury_deep(s, id)
    end
    s = without_grant(s, id)
  end
  local _, _, _, waiters = texts(s)
  s = with_waiters(s, without_waiter(waiters, ARGV[2]))
  if not held_by and string.byte(s, -1) ~= 10 then
    -- Its first write, allowed even when memory is full: then the others are, too.
    redis.call('PEXPIRE', state, keep_ms(s))
    pass_on(state, word, s, keep_ms(s))
  elseif s ~= (found or EMPTY) then
    store(state, s, keep_ms(s), held_by)
  end
  return nil
end

local refused
for i = 1, #KEYS, 2 do
  refused = leave(KEYS[i], KEYS[i + 1]) or refused
end
return refused or {1}
