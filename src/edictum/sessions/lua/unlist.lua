-- KEYS[1]: the sorted set of all sessions.  ARGV: keys of sessions that are gone, each followed by its place as it was read.
-- One that was used again meanwhile has another place, and stays.
for i = 1, #ARGV, 2 do
  local at = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if at and tonumber(at) == tonumber(ARGV[i + 1]) then redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return 'ok'
