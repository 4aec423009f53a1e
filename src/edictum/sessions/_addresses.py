"""Addresses of servers: the hosts that the URL of a store names, and credentials."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from edictum.core._records import record
from edictum.core.decide import describe
from edictum.errors import EdictumConfigError
from edictum.sessions._batching import Unavailable

# A password, or a user and a password; asked for with every new connection.
Secret: TypeAlias = str | tuple[str, str]
Credentials: TypeAlias = Callable[[], Secret | Awaitable[Secret]]

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(:(?P<port>[0-9]{1,5}))?")
_PLAIN = "Write scheme://user:password@host:port/database, special characters as %40."


@record
class Address:
    """The hosts of a URL with their ports, in its order."""

    parts: SplitResult
    hosts: tuple[tuple[str, int], ...]

    @property
    def shown(self) -> str:
        """The hosts for messages and logs, without credentials."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    @property
    def user(self) -> str | None:
        signed_in = self.parts.netloc.rpartition("@")[0]
        return unquote(signed_in.partition(":")[0]) or None


def read_address(url: str, default_port: int) -> Address:
    """Return the hosts that a URL names. Errors do not show the URL, which may hold a password."""
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise EdictumConfigError("The URL of a store is malformed.", hint=_PLAIN) from exc
    if parts.netloc.count("@") > 1:
        raise EdictumConfigError("The URL of a store has two '@'.", hint=_PLAIN)
    hosts: list[tuple[str, int]] = []
    for named in parts.netloc.rpartition("@")[2].split(","):
        found = _HOST.fullmatch(unquote(named))
        port = int(found["port"] or default_port) if found else 0
        if found is None or not 0 < port < 65_536:
            raise EdictumConfigError(
                f"The URL of a store ({parts.scheme}) has a host or port that cannot be read.",
                hint=_PLAIN,
            )
        hosts.append((found["host"] or "localhost", port))
    return Address(parts, tuple(hosts))


def read_from_file(path: str) -> Credentials:
    """Return a function that reads a password from a file each time it is called."""
    return lambda: Path(path).read_text(encoding="utf-8").rstrip("\r\n")


async def get_credentials(credentials: Credentials, user: str | None) -> tuple[str | None, str]:
    """Call ``credentials`` outside the event loop and return user and password; ``user`` is the
    URL's.

    Raises ``Unavailable`` for every failure: the next connection asks again.
    """
    try:
        found: object = await asyncio.to_thread(credentials)
        if inspect.isawaitable(found):
            found = await found
    except Exception as exc:
        raise Unavailable(f"its credentials could not be read: {describe(exc)}") from exc
    match found:
        case str(password):
            return user, password
        case (str(name), str(password)):
            return name, password
    kind = type(found).__name__
    raise Unavailable(f"its credentials are a {kind}, not a password or (user, password)")
