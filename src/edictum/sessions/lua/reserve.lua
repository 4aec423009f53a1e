-- Count the attempt, judge every limit in every account of the call, and take its slots in all of them or in none.
local function encoded(granted, breaches)
  local per_tool = op.per_tool and tallies(op.sid) or nil
  return cjson.encode({granted = granted, counters = counters(op.sid), breaches = breaches, tallies = per_tool})
end

local places = places_of(op)
for _, it in ipairs(places) do expire(it.sid) end

local known = redis.call('HGET', key('d', op.sid), op.call)
if known then return string.match(known, '^.-\31(.-)\31') end

-- A client numbers its reserves in the order of sending, so one with an old number was applied before and its answer was lost.
local looks = not op.attempt and not op.hold
local again = not looks and number(op.sid, 'q:' .. op.client) >= op.number
if again and redis.call('HEXISTS', key('e', op.sid), op.call) == 1 then
  return encoded(false, {})
end
if not again and not looks then redis.call('HSET', KEYS[1], 'q:' .. op.client, op.number) end

-- An account that holds the call still, because only its session was reset, has judged and counted it already. Limits are numbered
-- through all accounts.
local new, first = {}, 0
for index, it in ipairs(places) do
  it.first, first = first, first + #it.limits
  if index == 1 or redis.call('HEXISTS', key('d', it.sid), it.call) == 0 then new[#new + 1] = it end
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
    used, held = limit[4] == 0 and number(sid, 'a:' .. tool) or within(sid, limit), 0
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
  if op.attempt and not again then
    for _, tool in ipairs(it.tools) do add(it.sid, 'a:' .. tool, 1) end
    for _, window in ipairs(it.windows) do
      if window[2] == 'attempts' then stamp(it.sid, window, now, 1) end
    end
  end
  for index, limit in ipairs(it.limits) do
    local used, held = judge(it.sid, limit)
    if used then
      breaches[#breaches + 1] = {it.first + index - 1, used, held}
      refused = refused or limit[5]
    end
  end
end

local granted = not (refused and op.enforce)
if granted and op.hold then
  for _, it in ipairs(new) do
    for _, tool in ipairs(it.tools) do add(it.sid, 'h:' .. tool, 1) end
    change_amounts(it.sid, it.tools, 'R', op.amounts, '')
  end
end
local answer = encoded(granted, breaches)
if granted and op.hold then
  for _, it in ipairs(new) do
    local held = ARGV[1]
    if it ~= places[1] then
      held = cjson.encode({tools = it.tools, windows = it.windows, amounts = op.amounts, counts = op.counts})
    end
    redis.call('ZADD', key('l', it.sid), op.lease == 0 and '+inf' or text(now + op.lease), it.call)
    redis.call('HSET', key('d', it.sid), it.call, text(now) .. '\31' .. answer .. '\31' .. held)
  end
end
if not looks then
  for _, it in ipairs(places) do touch(it.sid, it.windows) end
end
return answer
