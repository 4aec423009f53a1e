"""Find the hosts that a text names, and judge whether they are allowed.

A host is normalized before it is matched: without user information, percent-decoded, lower case, no
trailing dot, international names in their ASCII form, every spelling of an IP address
(``2130706433``, ``0x7f.1``, ``[::ffff:7f00:1]``) as the usual one. What cannot be normalized, or
what programs read in different ways, is ``Ambiguous`` and refused.

The end of a host is found in two ways: as in a sentence (``see https://a.com, please``) and as a
client does, which reads everything up to the next ``/``, ``?`` or ``#`` as the authority: a client
sends ``https://a.com;x@b.com/`` to ``b.com``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from urllib.parse import unquote

from edictum.contracts.sandbox._commands import Program
from edictum.contracts.sandbox._options import GIT_VALUE_OPTIONS, values_in
from edictum.contracts.sandbox._shell import names

MAX_HOST = 253
MAX_ADDRESS = 4096
URL_KEYS = names(
    "url urls uri uris href host hosts hostname domain domains endpoint base_url api_base server"
    " website proxy webhook webhook_url callback_url origin"
)
# A name with one of these endings is a host; `main.py` and `notes.md` are files, although `.py` and
# `.md` are country domains.
HOST_ENDINGS = names(
    "com net org io dev ai app co edu gov mil int info biz xyz top site online shop club cloud tech"
    " me tv us uk de fr nl eu ru cn jp kr in br au ca ch at be it es se no dk fi pl cz ua tr il za"
    " mx ar su onion local localhost internal lan corp home arpa"
)
# Programs that connect to their operands, with the operands that are addresses even without a dot:
# all, the first, or those with a colon.
ADDRESSES: dict[str, str] = {
    **dict.fromkeys(names("curl wget aria2c lynx links w3m elinks nmap"), "every"),
    **dict.fromkeys(
        names(
            "ssh mosh sftp ftp telnet rlogin tftp nc ncat netcat ping ping6 dig nslookup host whois"
            " traceroute mtr"
        ),
        "first",
    ),
    **dict.fromkeys(names("scp rsync"), "colon"),
}
# Options that take a value. Every short one must be here: a missing letter would make the word
# behind a cluster such as -so its value.
VALUE_OPTIONS: dict[str, frozenset[str]] = {
    "curl": names(
        "-A -b -c -C -d -D -e -E -F -H -K -m -o -P -Q -r -t -T -u -U -w -x -X -y -Y -z --output"
        " --data --data-raw --data-binary --data-urlencode --json --header --user --request"
        " --cookie --cookie-jar --form --form-string --upload-file --user-agent --referer"
        " --write-out --max-time --connect-timeout --retry --retry-delay --retry-max-time"
        " --max-redirs --max-filesize --limit-rate --speed-time --speed-limit --keepalive-time"
        " --parallel-max --rate --proxy-user --cert --key --cacert --capath --config --continue-at"
        " --range --dump-header --output-dir --ciphers --tls-max --proto --noproxy --oauth2-bearer"
        " --stderr --trace --trace-ascii --etag-save --etag-compare"
    ),
    "wget": names(
        "-a -A -B -D -e -i -I -l -o -O -P -Q -R -t -T -U -w -X --output-document --output-file"
        " --directory-prefix --user-agent --header --post-data --post-file --tries --timeout --wait"
        " --level --quota --limit-rate --user --password --accept --reject --input-file"
    ),
    "ssh": names("-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -P -p -Q -R -S -W -w"),
    "scp": names("-c -D -F -i -J -l -o -P -S -X"),
    "rsync": names(
        "-e -f -B -M -T --rsh --exclude --include --exclude-from --include-from --files-from"
        " --filter --bwlimit --port --timeout"
    ),
    "nc": names("-e -g -G -i -I -m -M -O -P -p -q -s -T -V -w -W -X -x"),
    "ping": names("-c -F -I -i -l -M -m -p -Q -S -s -T -t -W -w"),
    "dig": names("-b -c -f -k -p -q -t -x -y"),
}
# Options of these programs whose value is a host.
HOST_OPTIONS: dict[str, frozenset[str]] = {
    "curl": names(
        "-x --proxy --preproxy --url --socks4 --socks4a --socks5 --socks5-hostname --doh-url"
    ),
    "ssh": names("-J -W"),
    "scp": names("-J"),
    "nc": names("-x"),
    "dig": names("-q -x"),
}
GIT_REMOTES = names("clone fetch pull push remote ls-remote submodule")

_SLASHES = re.compile(r"[/\\]{2,}")
_LOOSE_URL = re.compile(r"(?<![\w+.-])(?:https?|wss?|ftp):(?![/\\]{2})[/\\]?(?=\S)", re.IGNORECASE)
_AUTHORITY = re.compile(r"[^/?#\s\"'<>|;,)}`\\]{0,512}")
_MAX_REST = 2048
# What a client reads as the authority; the character before the address may tell where it ends.
_REST_IN_TEXT = re.compile(rf"[^/?#\s]{{0,{_MAX_REST}}}")
_REST_ALONE = re.compile(rf"(?:(?!\s{{1,8}}\w+:[/\\])[^/?#]){{0,{_MAX_REST}}}")
_REST_INSIDE = {
    pair[0]: re.compile(rf"[^/?#{re.escape(pair[1])}]{{0,{_MAX_REST}}}")
    for pair in ('""', "''", "``", "()", "<>", "[]", "{}")
}
_DROPPED = re.compile(r"[\t\r\n]+")  # clients drop these anywhere in an address
_IGNORED = re.compile(r"[\x00-\x20]*")  # what clients drop before an address
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,63}:\Z")
_STARTS_AS_URL = re.compile(
    r"[A-Za-z][A-Za-z0-9+-]{0,31}:[/\\]{2}|[/\\]{2}|(?:https?|wss?|ftp|file):", re.IGNORECASE
)
_WHOLE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+-]{0,31}:[/\\]{2}[^\s\"'`<>,;)|]*")
_SECOND_HOST = re.compile(r"[^:/?#\[\]]*:(?:\d+:|:[^:/?#]*:)")
_SCP_FORM = re.compile(r"[^\s:/{}]{1,512}:(?!//)")
_NAMED_HOST = re.compile(
    r"(?:-{0,2}(?!(?:\w*[._-])?no[-_]?proxy)[\w.-]{0,64}proxy[\w.-]{0,16}="
    r"|--?(?:url|socks[45]a?(?:-hostname)?|doh-url)="
    r"|(?:-o)?\s*(?:proxyjump|proxycommand|hostname)\s*[=\s])\s*(.+)",
    re.IGNORECASE | re.DOTALL,
)
_BEFORE_ADDRESS = frozenset(" \t\r\n\"'`=,(<>|;")
_BARE = re.compile(r"(?:[^\s@/]{1,256}@)?(\[[\w:.%]+\]|[^\s@/:?#\[\]]+)(?::|[/?#]|$)")
_BARE_SIX = re.compile(r"[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%\w+)?\Z")
_NO_HOST = ("-", "/", "./", "../", "~", "@", "file:")
_PIECES = re.compile(r"[=:,;\s\"'()]+")
_FORBIDDEN_IN_NAME = re.compile(r"[^a-z0-9._-]")
_NUMBER = re.compile(r"(?:0[xX][0-9A-Fa-f]+|[0-9]+)\Z")
_SOCKET_FILE = re.compile(r"/dev/(?:tcp|udp)/([^/\s]+)")


class Ambiguous(ValueError):
    """A host that cannot be normalized."""


def normalize_host(host: str) -> str:
    """Return the one form of a host name or address."""
    bracketed = host.startswith("[") and host.endswith("]")
    text = unquote(host[1:-1] if bracketed else host).rstrip(".").lower()
    if not text or len(text) > MAX_HOST or (":" in text and not bracketed):
        raise Ambiguous(host)
    if address := _normalize_address(text):
        return address
    name = _to_ascii(text)
    if _FORBIDDEN_IN_NAME.search(name):
        raise Ambiguous(host)
    return _normalize_address(name) or name


def _to_ascii(text: str) -> str:
    """Return international labels in ASCII form; plain ones stay, even with an underscore."""
    if text.isascii():
        return text
    try:
        return text.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError as error:
        raise Ambiguous(text) from error


def _normalize_address(text: str) -> str | None:
    """Return an IP address in its usual spelling; None for names."""
    if ":" in text:
        return _normalize_six(text)
    parts = text.split(".")
    if len(parts) > 4 or not all(_NUMBER.match(part) for part in parts):
        return None
    numbers = [_number(part) for part in parts]
    last_room = 256 ** (5 - len(numbers))
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= last_room:
        raise Ambiguous(text)
    first = sum(number << (24 - 8 * index) for index, number in enumerate(numbers[:-1]))
    return str(ipaddress.IPv4Address(first + numbers[-1]))


def _normalize_six(text: str) -> str:
    try:
        six = ipaddress.IPv6Address(text.partition("%")[0])
    except ValueError as error:
        raise Ambiguous(text) from error
    return str(six.ipv4_mapped or six)


def _number(text: str) -> int:
    """Read one part of an address as C does: hexadecimal, octal or decimal."""
    if len(text) > 40:
        raise Ambiguous(text)
    if text[:2].lower() == "0x":
        return int(text, 0)
    is_octal = len(text) > 1 and text[0] == "0" and set(text) <= set("01234567")
    return int(text, 8 if is_octal else 10)


def hosts_in(text: str) -> Iterator[str]:
    """Return the hosts of all addresses in a text that have a scheme or leading slashes."""
    for found in _SLASHES.finditer(text):
        at = found.start()
        before = text[at - 1] if at else " "
        if before == ":" and text[max(0, at - 5) : at].lower() != "file:":
            yield from _authority_hosts(text, found.end())
        elif before in _BEFORE_ADDRESS:
            yield from filter(looks_like_host, _authority_hosts(text, found.end()))
    for found in _LOOSE_URL.finditer(text):
        yield from _authority_hosts(text, found.end())
    yield from _SOCKET_FILE.findall(text)


def _authority_hosts(text: str, start: int) -> Iterator[str]:
    """Return the host of the authority that starts here, in both readings."""
    found = _AUTHORITY.match(text, start)
    authority = found.group() if found else ""
    if len(authority) == 512 or text.startswith("\\", start + len(authority)):
        raise Ambiguous(text[start : start + len(authority) + 40])
    yield from _without_user(authority)
    rest = _authority_of_client(text, start)
    if "@" in rest[len(authority) :]:
        yield from _without_user(rest)
    elif (joined := _DROPPED.sub("", rest)) != rest.strip():
        yield from _without_user(joined.split(None, 1)[0])


def _without_user(authority: str) -> Iterator[str]:
    """Return the host behind the last @, without the port."""
    host = authority.rpartition("@")[2]
    host = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    if host:
        yield host


def _authority_of_client(text: str, start: int) -> str:
    """Return everything that a client may read as the authority."""
    slashes = start
    while slashes and text[slashes - 1] in "/\\":
        slashes -= 1
    scheme = _SCHEME.search(text[max(0, slashes - 65) : slashes])
    begin = slashes - len(scheme.group()) if scheme else slashes
    ignored = _IGNORED.match(text)
    alone = ignored is not None and ignored.end() >= begin
    pattern = _REST_ALONE if alone else _REST_INSIDE.get(text[begin - 1], _REST_IN_TEXT)
    found = pattern.match(text, start)
    rest = found.group() if found else ""
    if len(rest) == _MAX_REST:
        raise Ambiguous(text[start : start + 80])
    return rest


def bare_hosts(text: str) -> Iterator[str]:
    """Return what looks like a host without a scheme: ``evil.com/x``, ``user@10.0.0.1:22``."""
    for piece in _PIECES.split(text):
        found = _BARE.match(piece) if len(piece) <= MAX_ADDRESS else None
        if found and looks_like_host(found.group(1)):
            yield found.group(1)


def sure_host(text: str, *, alone: bool = True) -> Iterator[str]:
    """Return the host of a text that must be an address. Raise Ambiguous when it names two, as
    ``a.com:443:b.com:443`` does, or when it is ``alone`` and names none.
    """
    if not text or text.startswith(_NO_HOST) or text in (".", "..") or _STARTS_AS_URL.match(text):
        return
    found = _BARE.match(text[:MAX_ADDRESS])
    if _BARE_SIX.match(text):
        yield f"[{text}]"
    elif _SECOND_HOST.match(text[:MAX_ADDRESS]) or (alone and not found):
        raise Ambiguous(text)
    elif found:
        yield found.group(1)


def address_operands(program: Program) -> dict[int, int]:
    """Return the operands that a program connects to, and where in each the address begins."""
    texts = program.texts
    if program.name == "git":
        return dict.fromkeys(_git_addresses(texts), 0)
    which = ADDRESSES.get(program.name)
    if which is None:
        return {}
    hosts = HOST_OPTIONS.get(program.name, frozenset())
    values = list(values_in(texts, VALUE_OPTIONS.get(program.name, frozenset()) | hosts))
    found = {value.index: value.at for value in values if value.option in hosts}
    operands = [value.index for value in values if not value.option]
    operands = [index for index in operands if not texts[index].startswith(("-", "+"))]
    servers = [i for i in operands if program.name == "dig" and texts[i].startswith("@")]
    connected = _find_connections(program.name, which, operands, texts)
    return found | dict.fromkeys(connected, 0) | dict.fromkeys(servers, 1)


def _find_connections(
    name: str, which: str, operands: list[int], texts: list[str]
) -> Iterator[int]:
    """Return which operands are addresses; the word behind an unknown option may be its value."""
    for index in operands:
        text = texts[index]
        if text.startswith("@") or (which == "colon" and ":" not in text):
            continue
        follows_option = _follows_unknown_option(name, index, texts)
        if not (text.isdigit() and (follows_option or _listens(name, texts))):
            yield index
        if which == "first" and not follows_option:
            return


def _follows_unknown_option(name: str, index: int, texts: list[str]) -> bool:
    return name not in VALUE_OPTIONS and index > 0 and texts[index - 1][:1] == "-"


def _listens(name: str, texts: list[str]) -> bool:
    """Return whether the program listens on a port, as ``nc -l 8080`` does."""
    listens = any(text[:1] == "-" and "l" in text for text in texts)
    return name in ("nc", "ncat", "netcat") and listens


def _git_addresses(texts: list[str]) -> Iterator[int]:
    """Return ``ann@host:path`` anywhere, ``host:path`` only where refspecs cannot stand."""
    values = values_in(texts, GIT_VALUE_OPTIONS)
    operands = [value.index for value in values if not value.option]
    remote = bool(operands) and texts[operands[0]] in GIT_REMOTES
    every = remote and texts[operands[0]] not in ("fetch", "pull", "push")
    for place, index in enumerate(operands[1:]):
        scp_form = _SCP_FORM.match(texts[index])
        if scp_form and ("@" in scp_form.group() or every or (remote and place == 0)):
            yield index


def looks_like_host(host: str) -> bool:
    text = unquote(host).rstrip(".").lower()
    if text == "localhost" or (text.startswith("[") and ":" in text):
        return True
    parts = text.split(".")
    if len(parts) == 4 and all(_NUMBER.match(part) for part in parts):
        return True
    return len(parts) > 1 and all(parts) and _is_host_ending(parts[-1])


def _is_host_ending(last: str) -> bool:
    return last in HOST_ENDINGS or not last.isascii() or last.startswith("xn--")


class DomainBounds:
    """The hosts that may be named and those that may not, as patterns."""

    def __init__(self, allowed: Iterable[str], forbidden: Iterable[str]) -> None:
        self.allowed = tuple(map(_normalize_pattern, allowed))
        self.forbidden = tuple(map(_normalize_pattern, forbidden))
        self.listed = ", ".join(self.allowed)

    @property
    def given(self) -> bool:
        return bool(self.allowed or self.forbidden)

    def find_violations(self, text: str, *, sure: bool = False) -> Iterator[str]:
        """Judge the hosts that a text names; ``sure`` when the text must be an address."""
        try:
            hosts = [*hosts_in(text), *bare_hosts(_WHOLE_URL.sub(" ", text))]
            addresses = [text] if sure else []
            if found := _NAMED_HOST.match(text):  # a prefix shows that it is an address
                addresses.append(found.group(1))
            for address in addresses:
                hosts += sure_host(address.strip(), alone=not hosts)
            for host in hosts:
                yield from self._check_host(normalize_host(host))
        except Ambiguous as error:
            domain = f"Domain {str(error)!r:.200}"
            yield f"{domain} can be read in more than one way, so it cannot be judged."

    def _check_host(self, host: str) -> Iterator[str]:
        for pattern in self.forbidden:
            if fnmatchcase(host, pattern):
                yield f"Domain '{host}' matches the forbidden domain {pattern}."
        if self.allowed and not any(fnmatchcase(host, pattern) for pattern in self.allowed):
            yield f"Domain '{host}' is not one of the allowed domains: {self.listed}."


def _normalize_pattern(pattern: str) -> str:
    """Return a pattern in the form of the hosts it is compared with."""
    text = pattern.strip().rstrip(".").lower()
    if "" in text.split("."):
        below = f"'*.{text.lstrip('.')}' for all hosts below a domain"
        raise Ambiguous(f"'{pattern}' has an empty label, which no host has; write {below}")
    if not set("/@\\?# ").isdisjoint(text.replace("?", "")):
        raise Ambiguous(f"'{pattern}' is more than a host name")
    if not set("*?[").isdisjoint(text):
        return ".".join(map(_to_ascii, text.split(".")))
    return normalize_host(f"[{text}]" if ":" in text else text)
