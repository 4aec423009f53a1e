-- KEYS[1]: the counter of changes.  ARGV[1]: the prefix of all keys.  ARGV[2]: the channel.
-- ARGV[3]: JSON: seen (id: lease and number of each row that the changes depend on), keys (the same for keys), rows (to be saved; times are text; lives: in ms, or 'for good').
-- Saves all rows, or none when another process has changed one of those, or added one: returns 1 or 0.
-- A row is a hash. 'key:' sets have the ids of rows with that key; 'list:' sorted sets those of a kind and status, by when they were asked; 'changes' those that have changed, by number.
local prefix, step = ARGV[1], cjson.decode(ARGV[3])
for id, seen in pairs(step.seen) do
  local row = redis.call('HMGET', prefix .. 'row:' .. id, 'leased', 'seq')
  if row[1] ~= seen[1] or row[2] ~= seen[2] then return 0 end
end
for _, key in ipairs(step.keys) do
  for _, id in ipairs(redis.call('SMEMBERS', prefix .. 'key:' .. key)) do
    if not step.seen[id] then
      if redis.call('EXISTS', prefix .. 'row:' .. id) == 1 then return 0 end
      redis.call('SREM', prefix .. 'key:' .. key, id)
    end
  end
end

-- Adds an id to the set of a key, which is kept for as long as the row that is kept longest.
local function link(name, id, lives)
  local left = redis.call('PTTL', name)
  redis.call('SADD', name, id)
  if lives == 'for good' then
    redis.call('PERSIST', name)
  elseif left == -2 or (left >= 0 and left < tonumber(lives)) then
    redis.call('PEXPIRE', name, lives)
  end
end

for _, row in ipairs(step.rows) do
  local name, seq = prefix .. 'row:' .. row.id, redis.call('INCR', KEYS[1])
  local list, before = row.kind .. ':' .. row.status, redis.call('HGET', name, 'list')
  if before and before ~= list then redis.call('ZREM', prefix .. 'list:' .. before, row.id) end
  redis.call('HSET', name, 'list', list, 'leased', row.leased, 'seq', seq, 'body', row.body)
  redis.call('SADD', prefix .. 'lists', list)
  redis.call('ZADD', prefix .. 'list:' .. list, row.asked, row.id)
  link(prefix .. 'key:' .. row.key, row.id, row.lives)
  if row.lives == 'for good' then
    redis.call('PERSIST', name)
  else
    redis.call('PEXPIRE', name, row.lives)
  end
  if before then  -- a new row is not waited for yet
    redis.call('ZADD', prefix .. 'changes', seq, row.id)
    redis.pcall('PUBLISH', ARGV[2], row.id)  -- without the right to do so, waiters look now and then
  end
end
return 1
