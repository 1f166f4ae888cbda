-- Verify: whether the word, or each of the words, is ours. Writes nothing.
-- KEYS  the words
-- ARGV  1 token
-- reply {1} ours; {0} not ours
for i = 1, #KEYS do
  local held_by = redis.pcall('GET', KEYS[i])
  if held_by ~= ARGV[1] then
    if type(held_by) == 'table' and not string.find(held_by.err, 'WRONGTYPE', 1, true) then
      return held_by
    end
    return {0}
  end
end
return {1}
