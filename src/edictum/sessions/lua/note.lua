-- KEYS[1]: the sorted set of all sessions, by when they were last used.  ARGV: the keys of sessions that were used just now.
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000000 + clock[2])
for _, name in ipairs(ARGV) do redis.call('ZADD', KEYS[1], now, name) end
return #ARGV
