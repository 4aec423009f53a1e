-- Extend a lease, here and in the other accounts of its call. Those that lie elsewhere in a cluster are told to the client.
expire(op.sid)
local detail = redis.call('HGET', key('d', op.sid), op.call)
if not detail then return cjson.encode({renewed = false}) end
local held = step_of(detail)
for _, it in ipairs(held.accounts and places_of(held) or {{sid = op.sid, call = op.call, windows = {}}}) do
  redis.call('ZADD', key('l', it.sid), 'XX', text(now + op.lease), it.call)
  touch(it.sid, it.windows)
end
return cjson.encode({renewed = true, elsewhere = held.elsewhere})
