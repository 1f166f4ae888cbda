-- Acquire of a semaphore: as many permits as are wanted, if so many are free and nobody waits. Who must wait is registered in
-- the same breath, and given his when it is his turn (table.lua). The limit is stored with the lock, by its first user.
-- KEYS  1 table
-- ARGV  1 token  2 ttl (ms)  3 label \n kind  4 lowest fencing token to give (16 digits)
--       5 not used  6 ticket to register, or ''  7 what else is on the list beside it
--       8 how many  9 the limit, as the caller knows it  10 '1' if the caller waits already: then the limit may be another
-- reply granted: fencing token (16 digits), N and zeros, in one string; {0, ms until a lease runs out, '', waiters or 0 if they were not counted} held;
--       {-1} dead token; {-2, key} somebody's data; {-3, version} state of a later layout; {-4, limit} more than the limit,
--       or another limit
--#include enter.lua
--#include table.lua
local px, n, ticket = tonumber(ARGV[2]), tonumber(ARGV[8]), ARGV[6]
local t, refused = open(ARGV[1], read)
if not t then
  return refused
end
if is_dead(t.s, string.sub(t.token, 1, 8)) then
  return {-1}
end
purge(t)
if ARGV[10] and ticket ~= '' and not t.mine and not t.dirty and n <= t.limit and t.used + n > t.limit then
  -- For him, nothing can have changed.
  local heard = with_heard(t.s, ticket, ARGV[7], t.now)
  if heard then
    t.s = heard
    return save(t, math.max(px, keep(t)), true) or held(t)
  end
end
-- Who was given the lease may have it, full memory or not.
t.is_late = t.mine
if t.limit == 0 then
  t.limit = tonumber(ARGV[9])
end
serve(t)
if not t.mine and (n > t.limit or not ARGV[10] and t.limit ~= tonumber(ARGV[9])) then
  take_off(t, ticket)
  if t.dirty then
    save(t, keep(t), true)
  end
  return {-4, ms(t.limit)}
end
if t.mine or t.used + n <= t.limit and (#t.list == 0 or t.list[1][1] == ticket) then
  take_off(t, ticket)
  local reply = grant(t, px, n, ARGV[3], ARGV[4], false)
  return save(t, px + keep(t)) or reply
end
if ticket ~= '' then
  register(t.list, ticket, t.now, ARGV[7])
end
if ticket ~= '' or t.dirty then
  -- Without a place on the list, for which there may be no memory, the waiter finds the truth by polling.
  local failed = save(t, math.max(px, keep(t)), true)
  if failed then
    return failed
  end
end
return held(t)
