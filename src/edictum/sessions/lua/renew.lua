-- Extend a lease, here and in the sessions above.
expire(op.sid)
local detail = redis.call('HGET', key('d', op.sid), op.call)
if not detail then return cjson.encode({renewed = false}) end
for _, it in ipairs(sessions_of(cjson.decode(string.match(detail, '^.-\31.-\31(.*)$')))) do
  redis.call('ZADD', key('l', it[1]), 'XX', text(now + op.lease), it[2])
  touch(it[1])
end
return cjson.encode({renewed = true})
