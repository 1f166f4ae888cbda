-- Verify: whether a lease of a table is ours, and has not run out. Writes nothing.
-- KEYS  1 table
-- ARGV  1 token
-- reply {1} ours; {0} not ours
local lease = redis.pcall('HGET', KEYS[1], 'h' .. ARGV[1])
if type(lease) == 'table' and lease.err then
  return string.find(lease.err, 'WRONGTYPE', 1, true) and {0} or lease
end
local ends = lease and string.match(lease, '^(%d+),')
local clock = redis.call('TIME')
if ends and tonumber(ends) > clock[1] * 1000 + clock[2] / 1000 then
  return {1}
end
return {0}
