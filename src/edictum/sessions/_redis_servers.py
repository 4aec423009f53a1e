"""Connections to Redis and Valkey: one server, one that Sentinel names, or a cluster.

A batch is one or more pipelines of redis-py's client, which knows about clusters. The server's
settings are checked when it is connected to, and again from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from edictum._logs import LEDGER_NOT_DURABLE, log
from edictum.core.decide import describe
from edictum.sessions._addresses import Credentials
from edictum.sessions._batching import (
    Batch,
    DataIdentity,
    Operation,
    Refused,
    StoredVersion,
    Unavailable,
    check_stored_version,
)
from edictum.sessions._redis_clients import RedisClients, all_clients

# Transport errors and invalid replies: the batch is sent again, over new connections.
REDIS_LOST = (Unavailable, RedisError, OSError, ValueError, KeyError, TypeError)
# Replies that mean "not now" or "not here any more": the batch is sent again as well.
NOT_NOW = (
    AskError,
    ClusterDownError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
# The same, for replies that redis-py has no class for, or keeps the first word of.
NOT_NOW_WORDS = (
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
)
REPLICATED_WITHIN_MS = 500
CHECK_EVERY_S = 60.0  # how long the settings that a server reported are trusted
_CLOSE_S = 1.0
NO_TLS = (
    "The server does not speak TLS on this port: write redis:// or valkey://, or use its TLS port."
)
ADVICE = {
    "mismatch, certificate is not valid": "The URL must name the server as its certificate does.",
    "CERTIFICATE_VERIFY_FAILED": (
        "Name the authority that signed the server's certificate: add ?ssl_ca_certs=/path/to/ca.pem"
        " to the URL."
    ),
    "WRONG_VERSION_NUMBER": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
}
SIGN_IN = (
    "Check the user and the password in the URL: redis://user:password@host, or"
    " redis://:password@host for the default user."
)
NO_PRIMARY = (
    "None of the sentinels names a server that takes writes: they do not answer, want another"
    " sentinel_username and sentinel_password, do not know the service of the URL, or have lost its"
    " primary."
)
REMEDY = "Delete its keys, edictum:*, or name another database."
RIGHTS = (
    "The user needs these rights: ~edictum:* +@read +@write +@scripting +info +time +select, in a"
    " cluster +cluster|slots +command, with ?replicas= +wait."
)


class RedisServer:
    """A server or a cluster.

    ``allow_eviction`` accepts a server that may evict keys when its memory is full. ``replicas`` is
    how many replicas must have received a write before it is answered.
    """

    serves_loops = True
    kept: str  # what is kept there, for messages
    at_risk: str  # what is lost with it
    version: int
    readable_since: int  # programs that speak an older version cannot use the data
    version_key: str  # of a hash: which version the data has, and since which it can be read
    replicated_key = "edictum:replicated"  # written to see how far replicas have come

    def __init__(
        self,
        url: str,
        *,
        allow_eviction: bool = False,
        credentials: Credentials | None = None,
        replicas: int = 0,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        self.clients = RedisClients(url, credentials)
        self.name = self.clients.name
        self.replicas = replicas
        self.check_every_s = check_every_s
        self.identity = DataIdentity(self.name)
        self._allow_eviction = allow_eviction
        self._warned = False

    def check(self, info: Mapping[str, Any]) -> None:
        """Refuse a server that evicts keys, and warn about one that forgets them when it
        restarts.
        """
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and not self._allow_eviction:
            raise Refused(
                f"{self.name} evicts keys when its memory is full (maxmemory-policy {policy}):"
                f" {self.at_risk} would be forgotten. Set it to noeviction, or add"
                " ?allow_eviction=1 to the URL."
            )
        # a server that reads its append-only file after a restart says that it has none
        if not self._warned and not info.get("aof_enabled", 0) and not info.get("loading", 0):
            self._warned = True
            log(
                LEDGER_NOT_DURABLE,
                "%s has no append-only file: when it restarts, %s start again from what it"
                " saved last.",
                self.name,
                self.kept,
                store=self.name,
            )


class RedisConnection:
    """A client for one event loop."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._client: Any = None
        self._checked_at: float | None = None

    async def execute(self, batch: Batch) -> list[Any]:
        try:
            checked_at, now = self._checked_at, time.monotonic()
            if checked_at is None or now - checked_at > self._server.check_every_s:
                await self._check()
            answers = await self._answer_all(batch.ops)
            if self._server.replicas:
                await self._wait_for_replicas()
            return answers
        except BaseException as exc:
            await self.close()  # unread replies must not be taken for others
            if isinstance(exc, REDIS_LOST):
                raise unavailable(exc) from exc
            raise

    async def _check(self) -> None:
        """Connect, and check whether the server, or every node of the cluster, may be used.

        This is repeated from time to time: settings change while a server runs.
        """
        clients = self._server.clients
        if self._client is None:
            self._client = clients.make()
        if not isinstance(self._client, RedisCluster):
            info = await self._client.execute_command("INFO")
            if info.get("cluster_enabled"):
                await self.close()
                self._client = clients.make_for_cluster()
            else:
                self._server.check(info)
        if isinstance(self._client, RedisCluster):
            if self._server.replicas:
                raise Refused(
                    "A Redis cluster does not support ?replicas=: leave it out of the URL."
                )
            await self._client.initialize()
            for node in self._nodes():
                self._server.check(await node.execute_command("INFO"))
        await self._check_version()
        await self._sweep()
        self._checked_at = time.monotonic()

    async def _check_version(self) -> None:
        """Mark an empty database as this version's; refuse one that another version has written."""
        server = self._server
        mark = await self._client.execute_command("HGETALL", server.version_key)
        if not mark:
            await self._check_old_data()
            fields = ("written_by", server.version, "readable_since", server.readable_since)
            await self._client.execute_command("HSET", server.version_key, *fields)
            made = ("HSETNX", server.version_key, "id", uuid.uuid4().hex)
            await self._client.execute_command(*made)
            mark = await self._client.execute_command("HGETALL", server.version_key)
        server.identity.compare(mark.get("id"))
        found = StoredVersion(int(mark["written_by"]), int(mark["readable_since"]))
        check_stored_version(server.name, found, server.version, (), REMEDY)

    async def _check_old_data(self) -> None:
        """Refuse a database written by a version that left no version mark."""

    async def _sweep(self) -> None:
        """Remove expired entries from lists."""

    async def _answer_all(self, ops: Sequence[Operation]) -> list[Any]:
        """Return one answer, or an exception in its place, per operation."""
        raise NotImplementedError

    async def _wait_for_replicas(self) -> None:
        """Return once enough replicas have received everything written so far, over any connection.

        A server waits for a connection's own writes only, and a repeated operation writes nothing.
        """
        wanted = self._server.replicas
        mark = ("SET", self._server.replicated_key, "")
        _, reply = await self._pipeline([mark, ("WAIT", wanted, REPLICATED_WITHIN_MS)])
        if (reached := get_reply(reply)) < wanted:
            raise Unavailable(f"{reached} of {wanted} replicas have what was written")

    async def close(self) -> None:
        self._checked_at = None
        if self._client is not None:  # a cluster's client remembers the nodes, and may go on
            await close_client(self._client)

    def abandon(self) -> None:
        """Do nothing: the sender pool keeps the parent's client alive and never uses it."""

    def _nodes(self) -> Iterable[Any]:
        client = self._client
        return client.get_primaries() if isinstance(client, RedisCluster) else (client,)

    async def _pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run commands in one round trip per node; a command's error stands in its place."""
        if not commands:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception) and is_lost(reply):
                raise reply
        return replies


async def close_client(client: Any) -> None:
    """Disconnect a client, and those of the sentinels that it asks, whatever the server does."""
    for it in all_clients(client):
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await it.aclose()


def unavailable(exc: Exception) -> Unavailable:
    """Return why the server could not be asked and, where that is known, how to fix it."""
    if isinstance(exc, Unavailable):
        return exc
    if isinstance(exc, MasterNotFoundError):  # its text shows how each client was made
        return Unavailable(NO_PRIMARY)
    text = describe(exc)
    if isinstance(exc, AuthenticationError):
        return Unavailable(f"{text} {SIGN_IN}")
    if isinstance(exc, NoPermissionError):
        return Unavailable(f"{text} {RIGHTS}")
    return Unavailable(
        next((f"{text} {advice}" for sign, advice in ADVICE.items() if sign in text), text)
    )


def is_lost(reply: Exception) -> bool:
    """Return whether a command's error is about the connection or the server, not the command
    itself.
    """
    is_refusal = isinstance(reply, ResponseError) and not isinstance(reply, NOT_NOW)
    return not is_refusal or str(reply).startswith(NOT_NOW_WORDS)


def get_reply(reply: Any) -> Any:
    """Return a reply; raise it if it is an exception."""
    if isinstance(reply, Exception):
        raise reply
    return reply
