-- Acquire of a read-write lock: a reader enters while nobody writes or waits to write, a writer when nobody is in. Who must wait
-- is registered in the same breath, and given the lease when it is his turn (table.lua), which he then acquires with the same
-- token. Who reads and wants to write (x) keeps reading while he waits for the others to go, and lets no new one in; then his
-- lease is replaced by a new one. A second one would wait for the first, and the first for him: he is refused.
-- KEYS  1 table
-- ARGV  1 token  2 ttl (ms)  3 label \n kind  4 lowest fencing token to give (16 digits)
--       5 how long to keep the table (ms)  6 ticket to register, or ''  7 what else is on the list beside it
--       8 r read, w write, x upgrade  9 token of the lease that is to be replaced, for x
-- reply granted: fencing token (16 digits), mark, mark's token (16 digits) and mark's label, in one string;
--       {0, ms until a lease runs out, '', waiters} held; {-1} dead token; {-2, key} somebody's data;
--       {-3, version} state of a later layout; {-5} another upgrader waits; {-6} the lease to be replaced is gone
--#include table.lua
local px, mode, ticket = tonumber(ARGV[2]), ARGV[8], ARGV[6]
local t, refused = open(ARGV[1])
if not t then
  return refused
end
if is_dead(t.s, string.sub(t.token, 1, 8)) then
  return {-1}
end
purge(t)
serve(t)
local enter = t.mine
if not enter and mode == 'x' then
  local old = redis.call('HGET', KEY, 'h' .. ARGV[9])
  if not old then
    return {-6}
  end
  for _, w in ipairs(t.list) do
    if want(w) == 'x' and w[1] ~= ticket then
      return {-5}
    end
  end
  if t.used == 1 then
    take_lease(t, ARGV[9], old)
    t.s = bury(t.s, string.sub(ARGV[9], 1, 8))
    enter = true
  end
elseif not enter and mode == 'w' then
  enter = t.used == 0 and (#t.list == 0 or t.list[1][1] == ticket)
elseif not enter then
  enter = not is_alone(t)
  for _, w in ipairs(t.list) do
    local kind = want(w)
    if kind == 'w' or kind == 'x' then
      enter = false
    end
  end
end
if enter then
  take_off(t, ticket)
  local alone = mode ~= 'r'
  local reply = grant(t, px, 1, ARGV[3], ARGV[4], alone)
  save(t, alone and tonumber(ARGV[5]) or px + keep(t))
  return reply
end
if ticket ~= '' then
  register(t.list, ticket, t.now, ARGV[7])
end
if ticket ~= '' or t.dirty then
  local failed = save(t, math.max(px, keep(t)), true)
  if failed then
    return failed
  end
end
return held(t)
