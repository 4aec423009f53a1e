-- All fields of the session's hash, once expired leases are out of it.
expire(op.sid)
return redis.call('HGETALL', KEYS[1])
