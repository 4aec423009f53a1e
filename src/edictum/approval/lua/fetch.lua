-- KEYS[1]: the counter of changes.  ARGV[1]: the prefix of all keys.  ARGV[2]: how many ids follow; the rest are keys by which rows are found.
-- Returns the time as seconds and microseconds, then for each row its id, lease, number of its last change, and body.
local prefix = ARGV[1]
local answer, seen = redis.call('TIME'), {}
local function add(id)
  if seen[id] then return end
  seen[id] = true
  local row = redis.call('HMGET', prefix .. 'row:' .. id, 'leased', 'seq', 'body')
  if row[3] then answer[#answer + 1] = { id, row[1], row[2], row[3] } end
end
for index = 3, #ARGV do
  if index - 2 <= tonumber(ARGV[2]) then
    add(ARGV[index])
  else
    for _, id in ipairs(redis.call('SMEMBERS', prefix .. 'key:' .. ARGV[index])) do add(id) end
  end
end
return answer
