-- KEYS[1]: the hash of a child session under its own tag.  ARGV[1]: its root session.  ARGV[2]: for how many ms the note lives, or 'for good'.
-- ARGV[3]: '1' for who only looks, and leaves no note.
-- Leaves a note where the child is kept. A session that has counters of its own cannot become a child: they would be lost.
local root = redis.call('HGET', KEYS[1], 'root')
if not root then
  if redis.call('EXISTS', KEYS[1]) == 1 then return 'used' end
  if ARGV[3] == '1' then return 'ok' end
  redis.call('HSET', KEYS[1], 'root', ARGV[1])
  root = ARGV[1]
  if ARGV[2] ~= 'for good' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
elseif ARGV[3] ~= '1' and root == ARGV[1] then
  -- Another process may have said that it lives longer.
  local left = redis.call('PTTL', KEYS[1])
  if ARGV[2] == 'for good' then
    redis.call('PERSIST', KEYS[1])
  elseif left >= 0 and left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
return root == ARGV[1] and 'ok' or 'other'
