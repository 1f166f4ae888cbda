-- Renew one lease of a table: gives it a new end, if it is still there and has not run out. Creates no key. The first write is
-- PEXPIRE, which works when memory is full. Layout of the table: table.lua.
-- KEYS  1 table
-- ARGV  1 token  2 ttl (ms)
-- reply {1, ms that were left} renewed; {0} not ours
local read = redis.pcall('HMGET', KEYS[1], 'x', 'h' .. ARGV[1])
if read.err then
  -- Another type is not ours; any other error says nothing about it.
  return string.find(read.err, 'WRONGTYPE', 1, true) and {0} or read
end
local ends, rest = string.match(read[2] or '', '^(%d+)(,.*)$')
local used, earliest, expires, others = string.match(read[1] or '', '^(%d+),(%d+),(%d+)(,.*)$')
if not ends or not used then
  return {0}
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if tonumber(ends) <= now then
  return {0}
end
local px = tonumber(ARGV[2])
-- What is kept beside the leases is wanted for an hour after the last one.
expires = math.max(tonumber(expires), now + px + 3600000)
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', expires - now))
local x = string.format('%s,%.0f,%.0f%s', used, math.min(tonumber(earliest), now + px), expires, others)
redis.call('HSET', KEYS[1], 'h' .. ARGV[1], string.format('%.0f', now + px) .. rest, 'x', x)
return {1, tonumber(ends) - now}
