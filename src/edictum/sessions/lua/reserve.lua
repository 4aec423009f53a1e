-- Count the attempt, judge every limit in every session of the call, and take its slots in all of them or in none.
local function encoded(granted, breaches)
  local per_tool = op.per_tool and tallies(op.sid) or nil
  return cjson.encode({granted = granted, counters = counters(op.sid), breaches = breaches, tallies = per_tool})
end

local sessions = sessions_of(op)
for _, it in ipairs(sessions) do expire(it[1]) end

local known = redis.call('HGET', key('d', op.sid), op.call)
if known then return string.match(known, '^.-\31(.-)\31') end

-- A client numbers its reserves in the order of sending, so one with an old number was applied before and its answer was lost.
local looks = not op.attempt and not op.hold
local again = not looks and number(op.sid, 'q:' .. op.client) >= op.number
if again and redis.call('HEXISTS', key('e', op.sid), op.call) == 1 then
  return encoded(false, {})
end
if not again and not looks then redis.call('HSET', KEYS[1], 'q:' .. op.client, op.number) end

-- A session above that holds the call still, because only its own was reset, has judged and counted it already.
local new = {sessions[1]}
for index = 2, #sessions do
  local it = sessions[index]
  if redis.call('HEXISTS', key('d', it[1]), it[2]) == 0 then new[#new + 1] = it end
end

local breaches, refused = {}, false

local function judge(sid, limit)
  local tool, counter, maximum, amount = limit[1], limit[2], limit[3], limit[7]
  local used, held, full
  if amount ~= '' then
    local spent = redis.call('HGET', key('h', sid), amount_field('S', tool, amount)) or '0'
    held = redis.call('HGET', key('h', sid), amount_field('R', tool, amount)) or '0'
    used = limit[4] == 0 and spent or text(within(sid, limit))
    local asked = op.amounts[amount]
    local taken = tonumber(used) + tonumber(held)
    -- Who does not say what it will use may go on while anything is left.
    if asked then full = taken + tonumber(asked) > maximum else full = taken >= maximum end
  elseif counter == 'attempts' then
    used, held = limit[4] == 0 and number(sid, 'a:') or within(sid, limit), 0
    if op.attempt then full = used > maximum else full = not op.hold and used >= maximum end
  else
    local letter = ({executions = 'x:', successes = 's:', failures = 'f:', consecutive_failures = 'c:'})[counter]
    used = limit[4] == 0 and number(sid, letter .. tool) or within(sid, limit)
    held = limit[6] and number(sid, 'h:' .. tool) or 0
    full = used + held >= maximum
  end
  if full then return tostring(used), tostring(held) end
end

for _, it in ipairs(new) do
  local sid = it[1]
  if op.attempt and not again then
    add(sid, 'a:', 1)
    for _, window in ipairs(op.windows) do
      if window[2] == 'attempts' then stamp(sid, window, now, 1) end
    end
  end
  for index, limit in ipairs(op.limits) do
    local used, held = judge(sid, limit)
    if used then
      breaches[#breaches + 1] = {index - 1, used, held}
      refused = refused or limit[5]
    end
  end
end

local granted = not (refused and op.enforce)
if granted and op.hold then
  for _, it in ipairs(new) do
    for _, tool in ipairs(op.tools) do add(it[1], 'h:' .. tool, 1) end
    change_amounts(it[1], op.tools, 'R', op.amounts, '')
  end
end
local answer = encoded(granted, breaches)
if granted and op.hold then
  for _, it in ipairs(new) do
    redis.call('ZADD', key('l', it[1]), op.lease == 0 and '+inf' or text(now + op.lease), it[2])
    redis.call('HSET', key('d', it[1]), it[2], text(now) .. '\31' .. answer .. '\31' .. ARGV[1])
  end
end
if not looks then
  for _, it in ipairs(sessions) do touch(it[1]) end
end
return answer
