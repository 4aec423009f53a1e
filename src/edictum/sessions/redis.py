"""The Redis and Valkey ledger: exact for all machines that share a server or a cluster.

The counting is done by the server, in the Lua files beside this one; each operation is one script,
and a batch is one pipeline (``redis_talk.py``). Time is the server's. All keys of a session, and of
a child's session those of its root, share a hash tag and so a cluster slot. Coroutines are served
by redis-py's asynchronous connections, everybody else by its blocking ones (``redis_links.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from edictum.core.decide import describe
from edictum.sessions.operations import DEFAULT_WAIT_S, Batch, Refused, Unavailable
from edictum.sessions.redis_links import Links, LoopLinks
from edictum.sessions.redis_talk import Scripts, Talks

logger = logging.getLogger("edictum")

# Whatever went wrong on the way or made no sense: the batch is sent again, over new connections.
LOST = (Unavailable, RedisError, OSError, ValueError, KeyError, TypeError)
ADVICE = {
    "mismatch, certificate is not valid": "The URL must name the server as its certificate does.",
    "CERTIFICATE_VERIFY_FAILED": (
        "Name the authority that signed the server's certificate: add ?ssl_ca_certs=/path/to/ca.pem"
        " to the URL."
    ),
    "WRONG_VERSION_NUMBER": (
        "The server does not speak TLS on this port: write redis:// or valkey://, or use its TLS"
        " port."
    ),
    "RECORD_LAYER_FAILURE": (
        "The server does not speak TLS on this port: write redis:// or valkey://, or use its TLS"
        " port."
    ),
}
SIGN_IN = (
    "Check the user and the password in the URL: redis://user:password@host, or"
    " redis://:password@host for the default user."
)
RIGHTS = (
    "The user needs these rights: ~edictum:* +@read +@write +@scripting +info +time +select, in a"
    " cluster +cluster|slots."
)


class RedisStore:
    """A server or a cluster.

    ``allow_eviction`` accepts one that may throw counters away when its memory is full, which
    forgets executions.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float | None = None,
        wait_s: float | None = None,
        allow_eviction: bool = False,
    ) -> None:
        parts = urlsplit(url)
        self._url = url.replace("valkey", "redis", 1) if parts.scheme.startswith("valkey") else url
        where = (
            parts.path
            if parts.scheme == "unix"
            else f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
        )
        self.name = (  # without credentials: it goes into reasons and logs
            f"{parts.scheme}://{where}"
        )
        self._options = _tls_options(parts.scheme, parts.query)
        self._ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1_000))
        self._wait_s = wait_s or DEFAULT_WAIT_S
        self._allow_eviction = allow_eviction
        self._scripts = Scripts()
        self._roots: dict[str, str] = {}
        self._warned = False
        self._links: Links | None = None
        self._talks = self.talks()

    def talks(self) -> Talks:
        """For one more way to the server."""
        return Talks(self.name, self._scripts, self._ttl_ms, self._roots)

    def forget(self) -> None:
        self._links = None
        self._roots.clear()
        self._talks = self.talks()

    def close(self) -> None:
        links, self._links = self._links, None
        if links is not None:
            links.close()

    def execute(self, batch: Batch) -> list[Any]:
        try:
            links = self._links or self._connect()
            return links.run(self._talks.answers(batch.ops))
        except BaseException as exc:
            self.close()  # some replies may not have been read, and must not be taken for others
            if isinstance(exc, LOST):
                raise unavailable(exc) from exc
            raise

    def _connect(self) -> Links:
        self._links = Links(self._url, self._talks.next_seed(), self._wait_s, self._options)
        self._links.run(self._talks.set_up(self._links.host, self.check))
        return self._links

    def on_loop(self) -> RedisLoopStore:
        return RedisLoopStore(self)

    def loop_links(self, talks: Talks) -> LoopLinks:
        return LoopLinks(self._url, talks.next_seed(), self._wait_s, self._options)

    def check(self, info: Mapping[str, str]) -> None:
        """Whether a server that says this about itself may be used."""
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and not self._allow_eviction:
            raise Refused(
                f"{self.name} evicts keys when its memory is full (maxmemory-policy {policy}):"
                " limits would be forgotten. Set it to noeviction, or add ?allow_eviction=1 to the"
                " URL."
            )
        if not self._warned and info.get("aof_enabled", "0") == "0":
            self._warned = True
            logger.warning(
                "%s has no append-only file: when it restarts, sessions start again from what it"
                " saved last.",
                self.name,
            )


class RedisLoopStore:
    """The same server for the coroutines of one event loop."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._talks = store.talks()
        self._links: LoopLinks | None = None

    async def execute(self, batch: Batch) -> list[Any]:
        try:
            links = self._links or await self._connect()
            return await links.run(self._talks.answers(batch.ops))
        except BaseException as exc:
            await self.close()
            if isinstance(exc, LOST):
                raise unavailable(exc) from exc
            raise

    async def _connect(self) -> LoopLinks:
        self._links = self._store.loop_links(self._talks)
        await self._links.run(self._talks.set_up(self._links.host, self._store.check))
        return self._links

    async def close(self) -> None:
        links, self._links = self._links, None
        if links is not None:
            await links.close()


def _tls_options(scheme: str, query: str) -> dict[str, Any]:
    """Versions of redis-py before 6 do not compare the server's name with its certificate unless
    they are told to.
    """
    asked = parse_qs(query)
    is_tls = scheme in ("rediss", "valkeys")
    return (
        {"ssl_check_hostname": True}
        if is_tls and not {"ssl_check_hostname", "ssl_cert_reqs"} & asked.keys()
        else {}
    )


def unavailable(exc: Exception) -> Unavailable:
    """Why the server could not be asked and, where that is known, what to do."""
    if isinstance(exc, Unavailable):
        return exc
    text = describe(exc)
    if isinstance(exc, AuthenticationError):
        return Unavailable(f"{text} {SIGN_IN}")
    if isinstance(exc, NoPermissionError):
        return Unavailable(f"{text} {RIGHTS}")
    return Unavailable(
        next((f"{text} {advice}" for sign, advice in ADVICE.items() if sign in text), text)
    )
