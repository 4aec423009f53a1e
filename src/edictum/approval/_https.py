"""Post to one network address and to no other: redirects are not followed, the name is resolved
once, and the address is checked before anything is sent to it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from edictum.core._records import record
from edictum.errors import EdictumConfigError

SCHEME_PORTS = {"http": 80, "https": 443}
MAX_STATUS_LINE = 1_024
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])\b")
_BAD_IN_URL = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
_NAT64 = IPv6Network("64:ff9b::/96")
IpAddress: TypeAlias = IPv4Address | IPv6Address


class RefusedAddress(Exception):
    """The name resolves to an address that must not be sent to."""


class BadReply(Exception):
    """The reply is not valid HTTP."""


class AllowedHosts:
    """The hosts that may be posted to: names, and addresses or networks such as ``10.1.0.0/16``.

    A listed name may resolve to public addresses. Any other address (private, loopback, link-local,
    reserved) must be listed itself.
    """

    def __init__(self, listed: Sequence[str]) -> None:
        if isinstance(listed, str) or not listed or not all(isinstance(it, str) for it in listed):
            hint = 'Use allowed_hosts=["hooks.slack.com"].'
            raise EdictumConfigError(f"allowed_hosts is {listed!r:.80}.", hint=hint)
        self._names = {it.lower().rstrip(".") for it in listed}
        self._networks = [net for it in listed if (net := _read_network(it)) is not None]

    def has_name(self, host: str) -> bool:
        """Return whether a name or an address is listed exactly as it stands in a URL."""
        if host.lower().rstrip(".") in self._names:
            return True
        address = _read_address(host)
        return address is not None and self.has_address(address)

    def has_address(self, address: IpAddress) -> bool:
        """Return whether an address is in a listed network."""
        forms = (address, _unwrap(address))
        return any(form in network for network in self._networks for form in forms)

    def check_address(self, text: str, *, encrypted: bool) -> None:
        """Raise RefusedAddress unless an address may be sent to."""
        address = ip_address(text.partition("%")[0])
        if self.has_address(address):
            return
        plain = _unwrap(address)
        if not plain.is_global or plain.is_multicast:
            raise RefusedAddress("its address is inside the network, and is not listed")
        if not encrypted:
            raise RefusedAddress("http without TLS is only for addresses that are listed")


def _read_network(text: str) -> Any:
    try:
        return ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None


def _read_address(text: str) -> IpAddress | None:
    try:
        return ip_address(text.strip("[]"))
    except ValueError:
        return None


def _unwrap(address: IpAddress) -> IpAddress:
    """Return the IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


@record
class WebhookTarget:
    """Where to post: a URL whose host is allowed. ``tls`` is None for plain http."""

    parts: SplitResult
    port: int
    allowed: AllowedHosts
    tls: ssl.SSLContext | None

    @property
    def host(self) -> str:
        return self.parts.hostname or ""


def make_target(
    url: Any, allowed: AllowedHosts, tls: ssl.SSLContext | None = None
) -> WebhookTarget:
    """Return the target of a URL. Raises EdictumConfigError for one that may not be used.

    No message repeats the URL: those of chat services are secrets.
    """
    hint = "Use https://host/path, with the host in allowed_hosts."
    try:
        parts = urlsplit(url)
        port = parts.port or SCHEME_PORTS[parts.scheme]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EdictumConfigError("The URL of the webhook is not valid.", hint=hint) from None
    if not parts.hostname or _BAD_IN_URL.search(url) or parts.username or parts.password:
        raise EdictumConfigError("The URL of the webhook cannot be used.", hint=hint)
    if not allowed.has_name(parts.hostname):
        problem = f"The webhook's host {parts.hostname!r} is not allowed."
        raise EdictumConfigError(problem, hint="Add it to allowed_hosts.")
    if parts.scheme == "http":
        return WebhookTarget(parts, port, allowed, None)
    return WebhookTarget(parts, port, allowed, tls or ssl.create_default_context())


async def post(target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> int:
    """Send a body, and return the status of the answer; its text is not read."""
    address = await _resolve(target)
    reader, writer = await asyncio.open_connection(
        address,
        target.port,
        limit=MAX_STATUS_LINE,
        ssl=target.tls,
        server_hostname=target.host if target.tls is not None else None,
    )
    try:
        writer.write(_write_head(target, headers, body) + body)
        await writer.drain()
        line = await reader.readuntil(b"\n")
    except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
        raise BadReply("its answer is not valid HTTP") from None
    finally:
        writer.transport.abort()
    found = _STATUS.match(line)
    if found is None:
        raise BadReply("its answer is not valid HTTP")
    return int(found[1])


async def _resolve(target: WebhookTarget) -> str:
    """Return an address of the target. All of its addresses are checked, and one is used."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses:
        raise RefusedAddress("it has no address")
    for address in addresses:
        target.allowed.check_address(address, encrypted=target.tls is not None)
    return addresses[0]


def _write_head(target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> bytes:
    parts = target.parts
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += [
        f"Content-Length: {len(body)}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
