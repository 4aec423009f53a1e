-- Forget a session.
for _, name in ipairs(redis.call('SMEMBERS', key('w', op.sid))) do redis.call('DEL', name) end
for _, kind in ipairs({'h', 'l', 'd', 'e', 'o', 'w'}) do redis.call('DEL', key(kind, op.sid)) end
return cjson.encode({reset = true})
