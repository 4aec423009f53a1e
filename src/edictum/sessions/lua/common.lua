-- What all operations share. Every script is this file followed by its own.
--
-- KEYS: the session's hash, then those of the accounts the call counts in. A session and those above it share one hash tag, so they
-- live in one cluster slot; a scope has a tag of its own, and in a cluster it is not named here.
-- ARGV[1]: the operation as JSON.  ARGV[2]: the prefix of all keys, "edictum:{tag}:"; an account may have another.
--
--   h:<sid>  hash   a:<tool> attempts, x:<tool> executions, s: successes, f: failures, c: consecutive failures, h: in flight,
--                   S:<len>:<tool><name> spent, R:<len>:<tool><name> reserved, q:<client> number of its last reserve,
--                   t when it was last used, W how far its longest window looks back, u a running number, root (alone): the session is kept under another tag
--   l:<sid>  zset   call -> when its lease ends            d:<sid>  hash   call -> started, answer, reservation
--   e:<sid>  hash   call -> how it ended                   o:<sid>  list   the same calls, oldest first
--   w:<sid>  set    names of the zsets with the moments that windows look at; their members are <running number>:<value>
--
-- Times are microseconds of the server. Amounts travel and are added as text: they may be larger than a Lua number can hold.

local op = cjson.decode(ARGV[1])
local prefix = ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local MAX_ENDED = 10000
local COUNTED = 'expired:counted '

local function text(number) return string.format('%.0f', number) end
local prefixes = {}
local function key(kind, sid) return (prefixes[sid] or prefix) .. kind .. ':' .. sid end
local function number(sid, field) return tonumber(redis.call('HGET', key('h', sid), field) or 0) end
local function add(sid, field, by) redis.call('HINCRBY', key('h', sid), field, by) end
local function amount_field(kind, tool, name) return kind .. ':' .. #tool .. ':' .. tool .. name end
local function moments(sid, tool, counter) return key('m', sid) .. ':' .. #tool .. ':' .. tool .. counter end

local function counters(sid)
  local found = redis.call('HMGET', key('h', sid), 'a:', 'x:', 's:', 'f:', 'c:', 'h:')
  for i = 1, 6 do found[i] = tonumber(found[i] or 0) end
  return found
end

-- The counters of every tool: {tool, attempts, executions, successes, failures, consecutive failures, in flight}.
local PLACES = {a = 2, x = 3, s = 4, f = 5, c = 6, h = 7}
local function tallies(sid)
  local fields, rows, found = redis.call('HGETALL', key('h', sid)), {}, {}
  for i = 1, #fields, 2 do
    local letter, tool = string.match(fields[i], '^([axsfch]):(.+)$')
    if letter then
      if not found[tool] then
        found[tool] = {tool, 0, 0, 0, 0, 0, 0}
        rows[#rows + 1] = found[tool]
      end
      found[tool][PLACES[letter]] = tonumber(fields[i + 1])
    end
  end
  return rows
end

-- The accounts a call counts in, its session first, each with the name the call has there: ids of calls are unique within one session.
local function places_of(step)
  local found = {{sid = step.sid, call = step.call, tools = step.tools, limits = step.limits, windows = step.windows}}
  for _, it in ipairs(step.accounts) do
    prefixes[it.sid] = it.prefix
    found[#found + 1] = {sid = it.sid, call = step.name, tools = it.tools, limits = it.limits, windows = it.windows}
  end
  return found
end

local function step_of(detail) return cjson.decode(string.match(detail, '^.-\31.-\31(.*)$')) end

local function stamp(sid, window, at, value)
  local name = moments(sid, window[1], window[2])
  redis.call('ZADD', name, text(at), redis.call('HINCRBY', key('h', sid), 'u', 1) .. ':' .. value)
  redis.call('SADD', key('w', sid), name)
  if string.sub(window[2], 1, 7) == 'amount:' then
    redis.call('ZREMRANGEBYSCORE', name, '-inf', text(now - window[4]))
  else
    redis.call('ZREMRANGEBYRANK', name, 0, -(window[3] + 1))
  end
end

local function within(sid, limit)
  local row = limit[2] == 'consecutive_failures'
  local name, after = moments(sid, limit[1], row and 'failures' or limit[2]), '(' .. text(now - limit[4])
  if limit[7] == '' then
    local inside = redis.call('ZCOUNT', name, after, '+inf')
    -- The row is made of the latest failures, so those of it that are inside are at most as many as it is long.
    return row and math.min(inside, number(sid, 'c:' .. limit[1])) or inside
  end
  local sum = 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', name, after, '+inf')) do
    sum = sum + tonumber(string.match(member, ':(.*)$'))
  end
  return sum
end

local function count(sid, tools, success)
  for _, tool in ipairs(tools) do
    add(sid, 'x:' .. tool, 1)
    if success then
      add(sid, 's:' .. tool, 1)
      redis.call('HSET', key('h', sid), 'c:' .. tool, 0)
    else
      add(sid, 'f:' .. tool, 1)
      add(sid, 'c:' .. tool, 1)
    end
  end
end

local function change_amounts(sid, tools, kind, amounts, sign)
  for _, tool in ipairs(tools) do
    for name, amount in pairs(amounts) do
      if amount ~= '0' then add(sid, amount_field(kind, tool, name), sign .. amount) end  -- '-0' is no number to Redis
    end
  end
end

local function remember(sid, call, how)
  redis.call('HSET', key('e', sid), call, how)
  if redis.call('RPUSH', key('o', sid), call) > MAX_ENDED then
    redis.call('HDEL', key('e', sid), redis.call('LPOP', key('o', sid)))
  end
end

-- A call that ran: an execution and its amounts count from its start, a success or failure from its end.
local function count_all(sid, tools, windows, success, started, used)
  count(sid, tools, success)
  change_amounts(sid, tools, 'S', used, '')
  for _, window in ipairs(windows) do
    local counter = window[2]
    if counter == 'executions' then
      stamp(sid, window, started, 1)
    elseif counter == (success and 'successes' or 'failures') then
      stamp(sid, window, now, 1)
    elseif used[string.sub(counter, 8)] and string.sub(counter, 1, 7) == 'amount:' then
      stamp(sid, window, started, used[string.sub(counter, 8)])
    end
  end
end

-- End a call that holds its slots. `used` are the amounts it states; what it does not state was used as reserved.
local function finish(sid, call, detail, result, used)
  local started, _, reserved = string.match(detail, '^(.-)\31(.-)\31(.*)$')
  local step = cjson.decode(reserved)
  redis.call('ZREM', key('l', sid), call)
  redis.call('HDEL', key('d', sid), call)
  for _, tool in ipairs(step.tools) do add(sid, 'h:' .. tool, -1) end
  change_amounts(sid, step.tools, 'R', step.amounts, '-')
  if result ~= 'release' then
    local spent = {}
    for name, amount in pairs(step.amounts) do spent[name] = amount end
    for name, amount in pairs(used) do spent[name] = amount end
    count_all(sid, step.tools, step.windows, result == 'success', tonumber(started), spent)
  end
  remember(sid, call, result)
end

-- A session is kept for its time to live, for as long as its longest window looks back, and while a call is in flight.
local function keep(sid)
  if op.ttl == 0 then return end
  local last = redis.call('ZRANGE', key('l', sid), -1, -1, 'WITHSCORES')[2]
  local ms = math.max(op.ttl, math.ceil(number(sid, 'W') / 1000))
  if last and last ~= 'inf' then ms = math.max(ms, math.ceil((tonumber(last) - now) / 1000)) end
  local names = redis.call('SMEMBERS', key('w', sid))
  for _, kind in ipairs({'h', 'l', 'd', 'e', 'o', 'w'}) do names[#names + 1] = key(kind, sid) end
  for _, name in ipairs(names) do
    if last == 'inf' then redis.call('PERSIST', name) else redis.call('PEXPIRE', name, text(ms)) end
  end
end

local function expire(sid)
  local over = redis.call('ZRANGEBYSCORE', key('l', sid), '-inf', text(now))
  for _, call in ipairs(over) do
    local detail = redis.call('HGET', key('d', sid), call)
    local step = step_of(detail)
    finish(sid, call, detail, step.counts and 'failure' or 'release', {})
    remember(sid, call, step.counts and COUNTED .. cjson.encode(step.amounts) or 'expired:released')
  end
  if #over > 0 then keep(sid) end
end

local function touch(sid, windows)
  redis.call('HSET', key('h', sid), 't', text(now))
  local longest = 0
  for _, window in ipairs(windows) do longest = math.max(longest, window[4]) end
  if longest > number(sid, 'W') then redis.call('HSET', key('h', sid), 'W', text(longest)) end
  keep(sid)
end

local root = redis.call('HGET', KEYS[1], 'root')
if root then return cjson.encode({moved = root}) end
