-- KEYS[1]: the counter of changes.  ARGV[1]: the prefix of all keys.  ARGV[2]: since which change, negative for the first look.
-- ARGV[3]: the list of rows whose leases may be renewed.  ARGV[4]: for how many seconds from now.  The rest: their ids.
-- Returns the number of the newest change, and the ids of the rows that have changed since.
local prefix, since = ARGV[1], tonumber(ARGV[2])
local clock = redis.call('TIME')
local leased = string.format('%.6f', clock[1] + clock[2] / 1000000 + ARGV[4])
for index = 5, #ARGV do
  local name = prefix .. 'row:' .. ARGV[index]
  if redis.call('HGET', name, 'list') == ARGV[3] then redis.call('HSET', name, 'leased', leased) end
end
local newest = tonumber(redis.call('GET', KEYS[1]) or '0')
if since < 0 then return { newest, {} } end
return { newest, redis.call('ZRANGEBYSCORE', prefix .. 'changes', '(' .. ARGV[2], '+inf') }
