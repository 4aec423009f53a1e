"""Domains: which hosts a text names, and whether they are allowed.

A host is brought to one form before it is matched: user information cut off, percent-decoded, lower case, no trailing dot,
international names in their ASCII form, every spelling of an IP address (``2130706433``, ``0x7f.1``, ``[::ffff:7f00:1]``) as the
usual one. What cannot be brought to that form, or what programs read in different ways, is ``Ambiguous`` and refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from urllib.parse import unquote

from edictum.contracts.sandbox.commands import Program
from edictum.contracts.sandbox.shell import Word, names

MAX_HOST = 253
MAX_ADDRESS = 4096
URL_KEYS = names(
    "url urls uri uris href host hosts hostname domain domains endpoint base_url api_base server website proxy webhook "
    "webhook_url callback_url origin"
)
# A name with one of these endings is a host; `main.py` and `notes.md` are files although .py and .md exist as countries.
HOST_ENDINGS = names(
    "com net org io dev ai app co edu gov mil int info biz xyz top site online shop club cloud tech me tv us uk "
    "de fr nl eu ru cn jp kr in br au ca ch at be it es se no dk fi pl cz ua tr il za mx ar su "
    "onion local localhost internal lan corp home arpa"
)
# Programs that connect to what they are given, by the operands that are addresses there even without a dot:
# every one, the first one, or those with a colon.
ADDRESSES: dict[str, str] = {
    **dict.fromkeys(names("curl wget aria2c lynx links w3m elinks"), "every"),
    **dict.fromkeys(
        names("ssh mosh sftp ftp telnet rlogin tftp nc ncat netcat ping ping6 dig nslookup host whois traceroute mtr nmap"), "first"
    ),
    **dict.fromkeys(names("scp rsync"), "colon"),
}
# Options whose value is no host, for the programs whose values look most like one.
VALUE_OPTIONS: dict[str, frozenset[str]] = {
    "curl": names(
        "-o --output -d --data --data-raw --data-binary --data-urlencode --json -H --header -u --user -X --request -b --cookie -c "
        "--cookie-jar -F --form -T --upload-file -A --user-agent -e --referer -w --write-out -m --max-time --connect-timeout --retry "
        "-E --cert --key --cacert -K --config -C -r --range -D --dump-header --output-dir"
    ),
    "wget": names("-O -o -P -a -U -t -T -w -Q -i --output-document --directory-prefix --user-agent --header --post-data"),
    "ssh": names("-i -p -l -F -o -L -R -D -E -c -m"),
    "scp": names("-i -P -F -o -c -l"),
    "nc": names("-p -w -s -e"),
    "ping": names("-c -i -w -W -s -t"),
    "dig": names("-p -t -f -k -b"),
    "nmap": names("-p -oN -oX -oG -oA -iL --script"),
}

_SLASHES = re.compile(r"[/\\]{2,}")
_LOOSE_URL = re.compile(r"(?<![\w+.-])(?:https?|wss?|ftp):(?![/\\]{2})[/\\]?(?=\S)", re.IGNORECASE)
_AUTHORITY = re.compile(r"[^/?#\s\"'<>|;,)}`\\]{0,512}")
_BEFORE_ADDRESS = frozenset(" \t\r\n\"'`=,(<>|;")
_BARE = re.compile(r"(?:[^\s@/]{1,256}@)?(\[[\w:.%]+\]|[^\s@/:?#\[\]]+)(?::|[/?#]|$)")
_BARE_SIX = re.compile(r"[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%\w+)?\Z")
_NO_HOST = ("-", "/", "./", "../", "~", "@", "file:")
_PIECES = re.compile(r"[=:,;\s\"'()]+")
_FORBIDDEN_IN_NAME = re.compile(r"[^a-z0-9._-]")
_NUMBER = re.compile(r"(?:0[xX][0-9A-Fa-f]+|[0-9]+)\Z")
_SOCKET_FILE = re.compile(r"/dev/(?:tcp|udp)/([^/\s]+)")


class Ambiguous(ValueError):
    """A host that cannot be brought to one form."""


def normal_host(host: str) -> str:
    """The one form of a host name or address."""
    bracketed = host.startswith("[") and host.endswith("]")
    text = unquote(host[1:-1] if bracketed else host).rstrip(".").lower()
    if not text or len(text) > MAX_HOST or (":" in text and not bracketed):
        raise Ambiguous(host)
    if address := _address(text):
        return address
    name = _ascii_name(text)
    if _FORBIDDEN_IN_NAME.search(name):
        raise Ambiguous(host)
    return _address(name) or name


def _ascii_name(text: str) -> str:
    """International labels in their ASCII form. Underscores and long labels, which that form forbids, stay when plain."""
    if text.isascii():
        return text
    try:
        return text.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError as error:
        raise Ambiguous(text) from error


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
        return int(text, 0)
    is_octal = len(text) > 1 and text[0] == "0" and set(text) <= set("01234567")
    return int(text, 8 if is_octal else 10)


def hosts_in(text: str) -> Iterator[str]:
    """The hosts of every address with a scheme or with leading slashes that a text contains."""
    for found in _SLASHES.finditer(text):
        before = text[found.start() - 1 : found.start()] if found.start() else " "
        if before == ":" and not _is_file_scheme(text, found.start()):
            yield from _authority_host(text, found.end())
        elif before in _BEFORE_ADDRESS:
            yield from (host for host in _authority_host(text, found.end()) if looks_like_host(host))
    for found in _LOOSE_URL.finditer(text):
        yield from _authority_host(text, found.end())
    yield from _SOCKET_FILE.findall(text)


def _is_file_scheme(text: str, slashes: int) -> bool:
    return text[max(0, slashes - 5) : slashes].lower() == "file:"


def _authority_host(text: str, start: int) -> Iterator[str]:
    """The host of the authority that starts here: behind the last @, without the port."""
    found = _AUTHORITY.match(text, start)
    authority = found.group() if found else ""
    if len(authority) == 512 or text.startswith("\\", start + len(authority)):
        raise Ambiguous(text[start : start + len(authority) + 40])
    host = authority.rpartition("@")[2]
    host = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    if host:
        yield host


def bare_hosts(text: str) -> Iterator[str]:
    """The hosts that a text without scheme looks like naming, such as ``evil.com/x`` or ``user@10.0.0.1:22``."""
    for piece in _PIECES.split(text):
        found = _BARE.match(piece) if len(piece) <= MAX_ADDRESS else None
        if found and looks_like_host(found.group(1)):
            yield found.group(1)


def sure_host(text: str) -> Iterator[str]:
    """The host of a text that must be an address. A small number alone is a port."""
    if not text or text.startswith(_NO_HOST) or text in (".", "..") or (text.isdigit() and len(text) <= 5):
        return
    if _BARE_SIX.match(text):
        yield f"[{text}]"
    elif found := _BARE.match(text[:MAX_ADDRESS]):
        yield found.group(1)
    else:
        raise Ambiguous(text)


def address_operands(program: Program) -> list[Word]:
    """The operands of a program that it connects to."""
    which = ADDRESSES.get(program.name)
    if which is None:
        return []
    valued = VALUE_OPTIONS.get(program.name, frozenset())
    before = ["", *(word.source for word in program.operands)]
    operands = [
        word for word, option in zip(program.operands, before, strict=False) if option not in valued and word.source[:1] not in "-+@"
    ]
    if which == "colon":
        return [word for word in operands if ":" in word.source]
    return operands[:1] if which == "first" else operands


def looks_like_host(host: str) -> bool:
    text = unquote(host).rstrip(".").lower()
    parts = text.split(".")
    if text == "localhost" or text.startswith("[") or (len(parts) == 4 and all(_NUMBER.match(part) for part in parts)):
        return True
    return len(parts) > 1 and all(parts) and (parts[-1] in HOST_ENDINGS or not parts[-1].isascii() or parts[-1].startswith("xn--"))


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
            if not hosts:
                hosts = [*(sure_host(text.strip()) if sure else ()), *bare_hosts(text)]
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
    """A pattern in the form of the hosts it is compared with: lower case, international labels in ASCII."""
    text = pattern.strip().rstrip(".").lower()
    if not set("*?[").isdisjoint(text):
        return ".".join(_ascii_name(label) for label in text.split("."))
    return normal_host(f"[{text}]" if ":" in text else text)
