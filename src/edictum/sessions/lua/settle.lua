-- End a call in every account that its reservation named. A call that holds nothing any more was settled before, expired, or ran
-- through a reset.
local function settle_late(sid, call, tools, windows)
  local before = redis.call('HGET', key('e', sid), call) or ''
  if op.result == 'release' or before == 'success' or before == 'failure' or before == 'release' then return end
  if string.sub(before, 1, #COUNTED) ~= COUNTED then
    count_all(sid, tools, windows, op.result == 'success', now, op.amounts)
  else
    -- It was counted as failed, with the amounts it had reserved. Now it is known better.
    local counted = cjson.decode(string.sub(before, #COUNTED + 1))
    for name, amount in pairs(op.amounts) do
      change_amounts(sid, tools, 'S', {[name] = amount}, '')
      if counted[name] then change_amounts(sid, tools, 'S', {[name] = counted[name]}, '-') end
    end
    if op.result == 'success' then
      for _, tool in ipairs(tools) do
        add(sid, 'f:' .. tool, -1)
        add(sid, 's:' .. tool, 1)
        redis.call('HSET', key('h', sid), 'c:' .. tool, 0)
      end
    end
    for _, window in ipairs(windows) do
      local name = string.match(window[2], '^amount:(.*)$')
      if window[2] == 'successes' and op.result == 'success' then
        stamp(sid, window, now, 1)
      elseif name and op.amounts[name] then  -- what it used less leaves the window with its start
        local more = tonumber(op.amounts[name]) - tonumber(counted[name] or 0)
        if more > 0 then stamp(sid, window, now, text(more)) end
      end
    end
  end
  remember(sid, call, op.result)
end

local own = redis.call('HGET', key('d', op.sid), op.call)
local held = own and step_of(own) or op
for _, it in ipairs(places_of(held.accounts and held or op)) do
  local detail = redis.call('HGET', key('d', it.sid), it.call)
  if detail then
    finish(it.sid, it.call, detail, op.result, op.amounts)
  else
    settle_late(it.sid, it.call, it.tools, it.windows)
  end
  touch(it.sid, it.windows)
end
return cjson.encode({counters = counters(op.sid), elsewhere = held.elsewhere})
