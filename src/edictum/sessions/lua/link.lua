-- KEYS[1]: the hash of a child session under its own tag.  ARGV[1]: its root session.  ARGV[2]: time to live in ms, or 0.
-- ARGV[3]: '1' for who only looks, and leaves no note.
-- Leaves a note where the child is kept. A session that has counters of its own cannot become a child: they would be lost.
local root = redis.call('HGET', KEYS[1], 'root')
if not root then
  if redis.call('EXISTS', KEYS[1]) == 1 then return 'used' end
  if ARGV[3] == '1' then return 'ok' end
  redis.call('HSET', KEYS[1], 'root', ARGV[1])
  root = ARGV[1]
end
if ARGV[2] ~= '0' and ARGV[3] ~= '1' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return root == ARGV[1] and 'ok' or 'other'
