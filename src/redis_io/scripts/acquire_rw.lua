-- Acquire of a read-write lock: a reader enters while nobody writes or waits to write, a writer when nobody is in. Who must wait
-- is registered in the same breath, and given the lease when it is his turn (table.lua), which he then acquires with the same
-- token. Who reads and wants to write (x) keeps reading while he waits for the others to go, and lets no new one in; then his
-- lease is replaced by a new one. A second one would wait for the first, and the first for him: he is refused.
-- KEYS  1 table
-- ARGV  1 token  2 ttl (ms)  3 label \n kind  4 lowest fencing token to give (16 digits)
--       5 how long to keep the table (ms)  6 ticket to register, or ''  7 what else is on the list beside it
--       8 r read, w write, x upgrade  9 token of the lease that is to be replaced, for x  10 '1' if its acquire was
--       sent more than once
-- reply granted: fencing token (16 digits), mark, mark's token (16 digits) and mark's label, in one string;
--       {0, ms until a lease runs out, '', waiters or 0 if they were not counted} held; {-1} dead token; {-2, key} somebody's data;
--       {-3, version} state of a later layout; {-5} another upgrader waits; {-6} the lease to be replaced is gone
--#include enter.lua
--#include table.lua
local px, mode, ticket = tonumber(ARGV[2]), ARGV[8], ARGV[6]
local t, refused = open(ARGV[1], read)
if not t then
  return refused
end
if is_dead(t.s, string.sub(t.token, 1, 8)) then
  return {-1}
end
purge(t)
if ticket ~= '' and not t.mine and not t.dirty and (is_alone(t) and mode ~= 'x' or t.used > 0 and mode == 'w') then
  -- For him, nothing can have changed.
  local heard = with_heard(t.s, ticket, ARGV[7], t.now)
  if heard then
    t.s = heard
    return save(t, math.max(px, keep(t)), true) or held(t)
  end
end
local old
if mode == 'x' and not t.mine then
  old = redis.call('HGET', KEY, 'h' .. ARGV[9])
  if not old then
    return {-6}
  end
  list_waiters(t)
  for _, w in ipairs(t.list) do
    if want(w) == 'x' and w[1] ~= ticket then
      return {-5}
    end
  end
end
-- Who was given the lease may have it, full memory or not.
t.is_late = t.mine
serve(t)
local enter = t.mine
if old then
  if t.used == 1 then
    take_lease(t, ARGV[9], old)
    t.s = bury(t.s, string.sub(ARGV[9], 1, 8))
    if ARGV[10] then
      t.s = bury_deep(t.s, string.sub(ARGV[9], 1, 8))
    end
    enter = true
  end
elseif not enter and mode == 'w' then
  enter = t.used == 0 and (#t.list == 0 or t.list[1][1] == ticket)
elseif not enter then
  enter = not is_alone(t)
  for _, w in ipairs(enter and t.list or {}) do
    local kind = want(w)
    if kind == 'w' or kind == 'x' then
      -- Unless nobody is in and he is the first: no message reached him, and he and a writer would wait for each other.
      enter = t.used == 0 and t.list[1][1] == ticket
      break
    end
  end
end
if enter then
  take_off(t, ticket)
  local alone = mode ~= 'r'
  local reply = grant(t, px, 1, ARGV[3], ARGV[4], alone)
  return save(t, alone and tonumber(ARGV[5]) or px + keep(t)) or reply
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
