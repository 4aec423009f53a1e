"""Artifacts in Redis or Valkey.

Beside the values there are the sizes of all artifacts, when they expire, the keys by artifact, and
how many bytes each session takes. Scripts change them in one step, so that quotas hold for all
processes and nothing has to be listed. Values that the server expires itself count until the next
sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

from redis.exceptions import RedisError

from edictum.execution.forks import call_in_child
from edictum.execution.portal import PORTAL
from edictum.harness._artifact_index import NO_QUOTAS, Listed, Quotas
from edictum.harness.artifact_backends import (
    HEADER_BYTES,
    SWEEP_BATCH,
    read_expiry,
    take_server_options,
)
from edictum.sessions._redis_clients import RedisClients
from edictum.sessions._redis_servers import close_client, unavailable

NEVER_S = 1e10  # three hundred years; servers do not accept larger numbers
# In all scripts KEYS are: sizes, expiries, keys by artifact, bytes taken (those of all under '').
_REMOVE = """
local function remove(key)
    local session, artifact = string.match(key, '^([^/]*)/(.*)$')
    local size = tonumber(redis.call('HGET', KEYS[1], key) or 0)
    if redis.call('HINCRBY', KEYS[4], session or '?', -size) <= 0 then
        redis.call('HDEL', KEYS[4], session or '?')
    end
    redis.call('HINCRBY', KEYS[4], '', -size)
    redis.call('HDEL', KEYS[1], key)
    redis.call('ZREM', KEYS[2], key)
    redis.call('HDEL', KEYS[3], artifact or key)
    redis.call('DEL', KEYS[1] .. ':' .. key)
end
"""
_PUT = """
local data, key, session, artifact = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local expires_at, expiry_ms = ARGV[5], ARGV[6]
local more = #data - tonumber(redis.call('HGET', KEYS[1], key) or 0)
local mine = tonumber(redis.call('HGET', KEYS[4], session) or 0) + more
local all = tonumber(redis.call('HGET', KEYS[4], '') or 0) + more
if mine > tonumber(ARGV[7]) or all > tonumber(ARGV[8]) then
    return {mine, all}
end
redis.call('SET', KEYS[1] .. ':' .. key, data)
if expiry_ms ~= '' then
    redis.call('PEXPIRE', KEYS[1] .. ':' .. key, expiry_ms)
end
redis.call('HSET', KEYS[1], key, #data)
redis.call('ZADD', KEYS[2], expires_at, key)
redis.call('HSET', KEYS[3], artifact, key)
redis.call('HINCRBY', KEYS[4], session, more)
redis.call('HINCRBY', KEYS[4], '', more)
return {}
"""
_DELETE = _REMOVE + "for _, key in ipairs(ARGV) do remove(key) end"
_SWEEP = f"""{_REMOVE}
local stale = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, {SWEEP_BATCH})
for _, key in ipairs(stale) do remove(key) end
return #stale
"""
_REBUILD = """
redis.call('DEL', KEYS[4])
local sizes = redis.call('HGETALL', KEYS[1])
for i = 1, #sizes, 2 do
    local session = string.match(sizes[i], '^([^/]*)/')
    redis.call('HINCRBY', KEYS[4], session or '?', sizes[i + 1])
    redis.call('HINCRBY', KEYS[4], '', sizes[i + 1])
end
"""


class RedisBackend:
    """Redis or Valkey: one server, or the one that Sentinel names. Its client lives in the portal's
    loop.

    The URL is that of a session store: TLS, sentinels, ``password_file=``.
    """

    def __init__(self, url: str, name: str = "edictum:artifacts") -> None:
        plain, options, self._wait_s = take_server_options(url)
        self._clients = RedisClients(plain, options.credentials, decodes=False)
        self._client: Any = None
        self._name = name
        self._keys = (name, f"{name}:expiries", f"{name}:ids", f"{name}:taken")
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew in a forked child: connections are the parent's."""
        self._parents_client = self._client  # referenced, so that it is not closed in the child
        self._client = None

    def _ask(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return what the server answers; without an answer, the next question is asked over a new
        connection.
        """

        async def run() -> Any:
            if self._client is None:
                self._client = self._clients.make()
            try:
                async with asyncio.timeout(self._wait_s):
                    return await ask(self._client)
            except (RedisError, OSError) as exc:  # a timeout is an OSError
                await self._close()
                raise unavailable(exc) from exc

        return PORTAL.run(run())

    def _run(self, script: str, *arguments: Any) -> Any:
        return self._ask(lambda it: it.register_script(script)(keys=self._keys, args=arguments))

    def _key(self, key: str) -> str:
        return f"{self._name}:{key}"

    def put_within(self, data: bytes, artifact: Listed, quotas: Quotas) -> str:
        session, _, artifact_id = artifact.key.partition("/")
        expiry_ms = max(1, int(artifact.ttl_s * 1000)) if artifact.ttl_s < NEVER_S else ""
        stored = (data, artifact.key, session, artifact_id, artifact.expires_at, expiry_ms)
        full = self._run(_PUT, *stored, quotas.session, quotas.total)
        return quotas.find_full(*map(int, full)) if full else ""

    def put(self, key: str, data: bytes, ttl_s: float) -> None:
        self.put_within(data, Listed(key, len(data), inf, ttl_s), NO_QUOTAS)

    def get(self, key: str, limit: int | None = None) -> bytes | None:
        name = self._key(key)
        if limit is None:
            found: bytes | None = self._ask(lambda it: it.get(name))
            return found
        return self._ask(lambda it: it.getrange(name, 0, limit - 1)) or None

    def delete(self, key: str) -> None:
        self._run(_DELETE, key)

    def find(self, artifact_id: str) -> str | None:
        found: bytes | None = self._ask(lambda it: it.hget(self._keys[2], artifact_id))
        return None if found is None else found.decode()

    def sweep(self, now: float) -> int:
        kept = self._ask(lambda it: _find_values(it, (self._keys[3], self._name)))
        if kept == [False, True]:
            self.rebuild()  # written by an older version, or by hand
        return int(self._run(_SWEEP, now))

    def rebuild(self) -> None:
        keys = [key for key, _ in self.list()]
        known = set(self._ask(lambda it: it.zrange(self._keys[1], 0, -1)))
        for key in (key for key in keys if key.encode() not in known):
            self._enter(key)
        self._run(_REBUILD)

    def _enter(self, key: str) -> None:
        expiry = read_expiry(self.get(key, HEADER_BYTES))
        self._ask(lambda it: it.zadd(self._keys[1], {key: expiry}))
        self._ask(lambda it: it.hset(self._keys[2], key.rpartition("/")[2], key))

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        known = self._ask(lambda it: it.hgetall(self._name))
        sizes = {key.decode(): int(size) for key, size in known.items()}
        keys = [key for key in sizes if key.startswith(prefix)]
        names = [self._key(key) for key in keys]
        there = dict(zip(keys, self._ask(lambda it: _find_values(it, names)), strict=True))
        if gone := [key for key in keys if not there[key]]:
            self._run(_DELETE, *gone)  # the server expired or evicted them
        return [(key, sizes[key]) for key in keys if there[key]]

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await close_client(client)

    def close(self) -> None:
        PORTAL.run(self._close())


async def _find_values(client: Any, names: Sequence[str]) -> list[bool]:
    """Return for each name whether it has a value."""
    async with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.exists(name)
        return [bool(found) for found in await pipe.execute()]
