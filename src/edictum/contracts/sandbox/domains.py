"""Domains: which hosts a text names, and whether they are allowed.

A host is brought to one form before it is matched: user information cut off, percent-decoded, lower case, no trailing dot, international names
in their ASCII form, every spelling of an IP address (``2130706433``, ``0x7f.1``, ``[::ffff:7f00:1]``) as the usual one. What cannot be
brought to that form, or what programs read in different ways, is ``Ambiguous`` and refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from urllib.parse import unquote

MAX_HOST = 253
URL_KEYS = frozenset(
    "url urls uri uris href link host hosts hostname domain domains endpoint base_url api_base server address site website proxy "
    "webhook webhook_url callback_url origin remote".split()
)
# Schemes for which browsers and most clients accept any number of slashes, also backwards ones.
WEB_SCHEMES = ("http", "https", "ws", "wss", "ftp")
# A name with one of these endings is a host; `main.py` and `notes.md` are files although .py and .md exist as countries.
HOST_ENDINGS = frozenset(
    "com net org io dev ai app co edu gov mil int info biz xyz top site online shop club cloud tech me tv us uk de fr nl eu ru cn jp kr in br "
    "au ca ch at be it es se no dk fi pl cz ua tr il za mx ar su onion local localhost internal lan corp home arpa".split()
)
# Programs that connect to what their operands name, so that there a bare word is a host.
NETWORK_PROGRAMS = frozenset(
    "curl wget ssh scp sftp ftp telnet nc ncat netcat socat ping ping6 dig nslookup host whois traceroute tracepath mtr nmap http https "
    "xh aria2c lynx links w3m elinks rsync mosh rlogin tftp smbclient".split()
)
# Options whose value is no host, for the programs whose values look most like one.
VALUE_OPTIONS: dict[str, frozenset[str]] = {
    "curl": frozenset(
        "-o --output -d --data --data-raw --data-binary --data-urlencode --json -H --header -u --user -X --request -b --cookie -c "
        "--cookie-jar -F --form -T --upload-file -A --user-agent -e --referer -w --write-out -m --max-time --connect-timeout --retry -E --cert "
        "--key --cacert -K --config -C -r --range -D --dump-header --output-dir".split()
    ),
    "wget": frozenset("-O -o -P -a -U -t -T -w -Q -i --output-document --directory-prefix --user-agent --header --post-data".split()),
    "ssh": frozenset("-i -p -l -F -o -L -R -D -E -c -m".split()),
    "scp": frozenset("-i -P -F -o -c -l".split()),
    "nc": frozenset("-p -w -s -e".split()),
    "ping": frozenset("-c -i -w -W -s -t".split()),
    "dig": frozenset("-p -t -f -k -b".split()),
    "nmap": frozenset("-p -oN -oX -oG -oA -iL --script".split()),
    "http": frozenset("-o --output -a --auth -s --style".split()),
}

_AUTHORITY_END = re.compile(r"[/?#\s\"'<>|;,)}`\\]")
_SCHEME = re.compile(r"(?<![A-Za-z0-9+.-])(?:https?|wss?|ftp):(?!//[^/\\])[/\\]*", re.IGNORECASE)
_HOST = re.compile(r"(?:[^\s@/]+@)?(\[[0-9A-Fa-f:.%\w]+\]|[\w.%-]+)\.?(?::[\d]*)?(?:[/?#:].*)?$", re.DOTALL)
_LABELS = re.compile(r"[\w-]+(?:\.[\w-]+)+\.?$")
_NUMBER = re.compile(r"(?:0[xX][0-9A-Fa-f]+|[0-9]+)$")
_SOCKET_FILE = re.compile(r"/dev/(?:tcp|udp)/([^/\s]+)")


class Ambiguous(ValueError):
    """A host that cannot be brought to one form."""


def normal_host(host: str) -> str:
    """The one form of a host name or address."""
    text = unquote(host).strip("[]") if host.startswith("[") else unquote(host)
    text = text.rstrip(".").lower()
    if not text or len(text) > MAX_HOST:
        raise Ambiguous(host)
    if address := _address(text):
        return address
    try:
        name = text.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError as error:
        name = text if text.isascii() and _LABELS.match(text) else ""
        if not name:
            raise Ambiguous(host) from error
    if not name or re.search(r"[^a-z0-9._-]", name):
        raise Ambiguous(host)
    return _address(name) or name


def _address(text: str) -> str | None:
    """An IP address in any spelling, as the usual one; None for names."""
    if ":" in text:
        try:
            six = ipaddress.IPv6Address(text.partition("%")[0])
        except ValueError as error:
            raise Ambiguous(text) from error
        return str(six.ipv4_mapped or six)
    parts = text.split(".")
    if len(parts) > 4 or not all(_NUMBER.match(part) for part in parts):
        return None
    numbers = [_number(part) for part in parts]
    last_room = 256 ** (5 - len(numbers))
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= last_room:
        raise Ambiguous(text)
    value = numbers[-1] + sum(number << (24 - 8 * index) for index, number in enumerate(numbers[:-1]))
    return str(ipaddress.IPv4Address(value))


def _number(text: str) -> int:
    """One part of an address as C reads it: hexadecimal, octal or decimal."""
    if len(text) > 40:
        raise Ambiguous(text)
    if text[:2].lower() == "0x":
        return int(text[2:], 16)
    is_octal = len(text) > 1 and text[0] == "0" and set(text) <= set("01234567")
    return int(text, 8 if is_octal else 10)


def hosts_in(text: str) -> Iterator[str]:
    """The hosts of every URL that a text contains."""
    at = 0
    while (mark := text.find("//", at)) >= 0:
        at = mark + 2
        before = text[mark - 1 : mark]
        if before == ":" or before in ("", "'", '"', "=", " ", ",", "("):
            yield from _authority_host(text, at, scheme=before == ":" and text[max(0, mark - 5) : mark].lower() or "")
    for found in _SCHEME.finditer(text):
        yield from _authority_host(text, found.end(), scheme="http:")
    for found in _SOCKET_FILE.finditer(text):
        yield found.group(1)


def _authority_host(text: str, start: int, scheme: str) -> Iterator[str]:
    """The host of the authority that starts here. A local file and a comment (``// text``) have none."""
    end = found.start() if (found := _AUTHORITY_END.search(text, start)) else len(text)
    authority = text[start:end]
    if scheme.endswith("file:") or not authority:
        return
    if text.startswith("\\", end):
        raise Ambiguous(text[start : end + 40])
    host = authority.rpartition("@")[2]
    if not scheme and not _LABELS.match(host.partition(":")[0]):
        return
    yield host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def bare_host(text: str, *, sure: bool = False) -> str | None:
    """The host of a text without scheme, such as ``evil.com/x`` or ``user@10.0.0.1:22``; ``sure`` when it must be one."""
    if not text or len(text) > MAX_PATH or "://" in text or text.startswith(("-", "/", ".", "~")):
        return None
    found = _HOST.match(text)
    if found is None:
        return None
    host = found.group(1)
    return host if sure or _looks_like_host(host) else None


MAX_PATH = 4096


def _looks_like_host(host: str) -> bool:
    text = unquote(host).rstrip(".").lower()
    if text == "localhost" or text.startswith("["):
        return True
    parts = text.split(".")
    if len(parts) == 4 and all(_NUMBER.match(part) for part in parts):
        return True
    return len(parts) > 1 and all(parts) and (parts[-1] in HOST_ENDINGS or parts[-1].startswith("xn--"))


class DomainBounds:
    """The hosts that may be named and those that may not, as patterns."""

    def __init__(self, allowed: Iterable[str], forbidden: Iterable[str]) -> None:
        self.allowed = tuple(_pattern(pattern) for pattern in allowed)
        self.forbidden = tuple(_pattern(pattern) for pattern in forbidden)
        self.listed = ", ".join(self.allowed)

    @property
    def set(self) -> bool:
        return bool(self.allowed or self.forbidden)

    def text(self, text: str, *, sure: bool = False) -> str | None:
        """The violation of any host that a text names; ``sure`` when the text is known to be an address."""
        try:
            hosts = list(hosts_in(text))
            if not hosts and (bare := bare_host(text.strip(), sure=sure)) is not None:
                hosts = [bare]
            return next((problem for host in hosts if (problem := self.host(normal_host(host)))), None)
        except Ambiguous as error:
            return f"Domain {str(error)!r:.200} can be read in more than one way, so it cannot be judged."

    def host(self, host: str) -> str | None:
        for pattern in self.forbidden:
            if fnmatchcase(host, pattern):
                return f"Domain '{host}' matches the forbidden domain {pattern}."
        if self.allowed and not any(fnmatchcase(host, pattern) for pattern in self.allowed):
            return f"Domain '{host}' is not one of the allowed domains: {self.listed}."
        return None


def _pattern(pattern: str) -> str:
    """A pattern in the form of the hosts it is compared with; its wildcards are kept."""
    text = pattern.strip().rstrip(".").lower()
    if not set("*?[").isdisjoint(text):
        return ".".join(label if not label.isascii() and False else label for label in text.split("."))
    try:
        return normal_host(text)
    except Ambiguous:
        return text
