"""Who may use the port of ``--http``, by the headers ``Host`` and ``Origin``, and under which URL.

A web page can lead a browser to a port of this machine under a name of its own (DNS rebinding); the
two headers give it away.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_HOST = "*"
BAD_HOST = b"This host name is not allowed; see --allow-host."
BAD_ORIGIN = b"Pages of this origin are not allowed; see --allow-host."
DEFAULT_PORTS = {"http": 80, "https": 443}
RESOURCE_PATH = "/.well-known/oauth-protected-resource"
RESOURCE_METADATA = re.compile(r'(resource_metadata\s*=\s*")([^"]*)(")', re.IGNORECASE)
# A path, which leads back to where the client asked; two slashes begin another host.
OWN_PATH = re.compile(r"/(?![/\\])")


def get_headers(scope: Any, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


class AccessCheck:
    """Refuses requests whose ``Host`` or ``Origin`` is not one of the allowed host names."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)

    def find_refusal(self, scope: Any) -> tuple[int, bytes] | None:
        """Return status and reason if a request must not be served."""
        if ANY_HOST in self._hosts:
            return None
        hosts = get_headers(scope, b"host")
        if len(hosts) != 1 or _get_hostname(f"//{hosts[0]}") not in self._hosts:
            return 421, BAD_HOST
        if any(
            _get_hostname(origin) not in self._hosts for origin in get_headers(scope, b"origin")
        ):
            return 403, BAD_ORIGIN
        return None


def check_access(
    sockets: Sequence[socket.socket], host: str, allowed: Sequence[str]
) -> AccessCheck:
    """Return the check for a port: a loopback port serves this machine and the allowed names."""
    addresses = [ipaddress.ip_address(each.getsockname()[0].split("%")[0]) for each in sockets]
    if all(address.is_loopback for address in addresses):
        return AccessCheck([*LOOPBACK_HOSTS, *map(str, addresses), host, *allowed])
    return AccessCheck(allowed or [ANY_HOST])


@lru_cache(100)
def _get_hostname(url: str) -> str | None:
    with suppress(ValueError):
        return urlsplit(url).hostname
    return None


# --- The server's URLs, as clients see them -------------------------------------------------------


def get_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)


def is_at(url: str, origin: str) -> bool:
    with suppress(ValueError):
        return get_origin(url) == get_origin(origin)
    return False


def make_path(url: str, origin: str) -> str | None:
    """Return a URL of an origin as a path; None if it leads elsewhere."""
    if OWN_PATH.match(url):
        return url
    return urlunsplit(("", "", *urlsplit(url)[2:])) or "/" if is_at(url, origin) else None


def list_path_steps(path: str) -> list[str]:
    """Return the names in a path, as the most lenient server on the way would read it."""
    steps: list[str] = []
    for part in unquote(path).replace("\\", "/").split("/"):
        step = part.partition(";")[0].casefold()
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    return steps


def move_url(url: str, origin: str, scope: Any) -> str:
    """Return a URL of the server as the client of a request would write it; others unchanged."""
    hosts = get_headers(scope, b"host")
    if not hosts or not is_at(url, origin):
        return url
    scheme: str = scope.get("scheme", "http")
    return urlunsplit((scheme, hosts[0], *urlsplit(url)[2:]))


def move_challenge(value: str, origin: str, scope: Any) -> str:
    """Return ``WWW-Authenticate`` with the place of the metadata where the client can ask us."""

    def move(found: re.Match[str]) -> str:
        return f"{found[1]}{move_url(found[2], origin, scope)}{found[3]}"

    return RESOURCE_METADATA.sub(move, value)


def move_resource(body: bytes, origin: str, scope: Any) -> bytes:
    """Return the metadata of a protected resource with our URL: clients compare it with theirs."""
    with suppress(ValueError, RecursionError):
        metadata = json.loads(body)
        if isinstance(metadata, dict) and isinstance(metadata.get("resource"), str):
            moved = move_url(metadata["resource"], origin, scope)
            return json.dumps({**metadata, "resource": moved}).encode()
    return body


# --- Our own URL, for clients that have to log in -------------------------------------------------


def make_own_url(path: str, scope: Any) -> str:
    """Return the URL of a path here, as the client of a request would write it."""
    host, scheme = (get_headers(scope, b"host") or [""])[0], str(scope.get("scheme", "http"))
    return urlunsplit((scheme, host, path, "", ""))


def make_metadata(path: str, issuer: str, scope: Any) -> bytes:
    """Return the metadata of a protected resource at a path here (RFC 9728)."""
    resource = make_own_url(path, scope)
    return json.dumps({"resource": resource, "authorization_servers": [issuer]}).encode()
