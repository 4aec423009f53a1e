-- KEYS[1]: the counter of changes.  ARGV[1]: the prefix of all keys.  ARGV[2]: how large a sample is.
-- Takes rows out of the lists that have expired, as far as a sample of each shows them. Returns how many these were in the fullest sample.
local prefix, most = ARGV[1], 0
local function sweep(name)
  local gone = 0
  for _, id in ipairs(redis.call('ZRANDMEMBER', name, ARGV[2])) do
    if redis.call('EXISTS', prefix .. 'row:' .. id) == 0 then
      redis.call('ZREM', name, id)
      gone = gone + 1
    end
  end
  most = math.max(most, gone)
end
sweep(prefix .. 'changes')
for _, list in ipairs(redis.call('SMEMBERS', prefix .. 'lists')) do sweep(prefix .. 'list:' .. list) end
return most
