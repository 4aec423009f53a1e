"""Connections to a Redis server, or to the nodes of a cluster: redis-py's, blocking for threads and
asynchronous for event loops.

Both hold one connection per node. A round trip sends everything before it reads anything.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio.connection
import redis.connection
from redis.asyncio.retry import Retry as LoopRetry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from edictum.sessions.patience import Patience
from edictum.sessions.redis_talk import Node, Replies, Requests, T, Talk


def _pool(module: Any, url: str, seed: Node, **options: Any) -> Any:
    """How connections are made: as the URL says, but for the host when another node is to be
    asked.
    """
    pool = module.ConnectionPool.from_url(url, decode_responses=True, protocol=2, **options)
    pool.connection_kwargs.update(_where(seed))
    return pool


def _at(pool: Any, node: Node) -> Any:
    """A new connection to that node."""
    return pool.connection_class(**{**pool.connection_kwargs, **_where(node)})


def _where(node: Node) -> dict[str, Any]:
    return {} if node is None else {"host": node[0], "port": node[1]}


class Links:
    """For threads."""

    def __init__(self, url: str, seed: Node, wait_s: float, options: dict[str, Any]) -> None:
        retry = Retry(NoBackoff(), 0)  # repeating is the courier's business
        waits = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s}
        self._pool = _pool(redis.connection, url, seed, retry=retry, **waits, **options)
        self._links: dict[Node, Any] = {}

    @property
    def host(self) -> str:
        return str(self._pool.connection_kwargs.get("host", "localhost"))

    def run(self, talk: Talk[T]) -> T:
        try:
            requests = next(talk)
            while True:
                requests = talk.send(self._exchange(requests))
        except StopIteration as end:
            result: T = end.value
            return result

    def _exchange(self, requests: Requests) -> Replies:
        for node, commands in requests.items():
            link = self._link(node)
            link.send_packed_command(link.pack_commands(commands), check_health=False)
        return {
            node: [_read(self._links[node]) for _ in commands]
            for node, commands in requests.items()
        }

    def _link(self, node: Node) -> Any:
        if node not in self._links:
            self._links[node] = _at(self._pool, node)
            self._links[node].connect()
        return self._links[node]

    def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.disconnect()


def _read(link: Any) -> Any:
    try:
        return link.read_response()
    except ResponseError as exc:
        return exc


class LoopLinks:
    """For one event loop."""

    def __init__(self, url: str, seed: Node, wait_s: float, options: dict[str, Any]) -> None:
        retry = LoopRetry(NoBackoff(), 0)
        waits = {
            "socket_timeout": None,
            "socket_connect_timeout": None,
        }  # one bound for all of a round trip, see _in_time
        self._pool = _pool(redis.asyncio.connection, url, seed, retry=retry, **waits, **options)
        self._wait_s = wait_s
        self._links: dict[Node, Any] = {}

    @property
    def host(self) -> str:
        return str(self._pool.connection_kwargs.get("host", "localhost"))

    async def run(self, talk: Talk[T]) -> T:
        try:
            requests = next(talk)
            while True:
                requests = talk.send(await self._in_time(requests))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _in_time(self, requests: Requests) -> Replies:
        """The round trip in the time there is, which does not run while something blocks the
        loop.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as bound:
            patience = Patience(loop, self._wait_s, lambda: bound.reschedule(loop.time()))
            try:
                return await self._exchange(requests)
            finally:
                patience.cancel()

    async def _exchange(self, requests: Requests) -> Replies:
        for node, commands in requests.items():
            link = await self._link(node)
            await link.send_packed_command(link.pack_commands(commands), check_health=False)
        return {
            node: [await _read_async(self._links[node]) for _ in commands]
            for node, commands in requests.items()
        }

    async def _link(self, node: Node) -> Any:
        if node not in self._links:
            self._links[node] = _at(self._pool, node)
            await self._links[node].connect()
        return self._links[node]

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.disconnect(nowait=True)


async def _read_async(link: Any) -> Any:
    try:
        return await link.read_response()
    except ResponseError as exc:
        return exc
