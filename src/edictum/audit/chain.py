"""The chain of an audit log: how changed, removed or added records are detected. Pure: no I/O, no
clock, no key.

A *writer* is one sink in one process. Each of its records has a sequence number and the hash of the
record before it, so several writers share a log without waiting for each other. A *head* says how
far all writers have come; heads are a chain of their own, and are signed. A record is an event with
the member ``_chain``, written as canonical JSON (RFC 8785), where that member is the first one::

    {"_chain":{"hash":"…","previous":"…","sequence":7,"writer":"…"},"action":"call_executed",…}

Its hash is the SHA-256 of that text without the member ``hash``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, NamedTuple, TypeAlias

from edictum.core.values import dumps

GENESIS = "0" * 64  # stands for the hash of the record before the first one
MAX_EXACT_INT = 2**53 - 1  # some readers of JSON round larger numbers
MAX_LISTED_WRITERS = 100

_START = '{"_chain":{'
_RECORD = re.compile(
    rb'\{"_chain":\{"hash":"(?P<hash>[0-9a-f]{64})",'
    rb'(?P<rest>"previous":"(?P<previous>[0-9a-f]{64})"'
    rb',"sequence":(?P<sequence>[1-9][0-9]{0,15}),"writer":"(?P<writer>[0-9a-z-]{1,64})"\})'
)


# --- Canonical JSON (RFC 8785) --------------------------------------------------------------------


def write_canonical(value: Any) -> str:
    """Return JSON data as RFC 8785 writes it.

    Whole numbers that not every reader of JSON can hold become text. A half of a surrogate pair
    becomes a question mark: it has no form in UTF-8.
    """
    parts: list[str] = []
    _write_value(value, parts)
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return write_canonical(json.loads(text.encode(errors="replace")))
    return text


def canonicalize(text: str, *, is_exact: bool = False) -> str:
    """Return the canonical form of a JSON text.

    ``is_exact`` says that its keys are sorted, that it has no blanks, and numbers as RFC 8785
    writes them: then only characters may have to be written otherwise. Most other texts need no
    more than sorted keys and no blanks, which ``msgspec``, or else the standard library, does
    quicker. They do not write fractions, large numbers and some unusual characters as RFC 8785
    says.
    """
    if is_exact and ("\\" not in text or _ESCAPE.search(text) is None):
        return text
    try:
        if _LONG_NUMBER not in text.encode().translate(_DIGITS):
            decode, encode = find_codec()
            made = encode(decode(text))
            if made.isascii() or _UNUSUAL.search(made) is None:
                return made
    except Exception:  # noqa: S110 # a fraction, or what a reader does not take: the plain way
        pass
    return write_canonical(json.loads(text))


def canonicalize_data(data: Mapping[str, Any]) -> str:
    """Return the canonical form of data that ``dumps`` can write as JSON."""
    with suppress(Exception):  # too deep, or with half of a surrogate pair
        if _is_plain(data):
            made = find_codec()[1](data)
            if made.isascii() or _UNUSUAL.search(made) is None:
                return made
    return canonicalize(dumps(data))


_ESCAPE = re.compile(r"\\u")
_LONG_NUMBER = b"0" * 16
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_UNUSUAL = re.compile("[\ud800-\U0010ffff]")
JsonCodec: TypeAlias = tuple[Callable[[str], Any], Callable[[Any], str]]


def _is_plain(value: Any) -> bool:
    """Return whether a value is JSON without fractions and large numbers."""
    kind = type(value)
    if kind in _PLAIN_KINDS:
        return True
    if kind is int:
        return bool(-MAX_EXACT_INT <= value <= MAX_EXACT_INT)
    if kind is dict:
        return set(map(type, value)) <= {str} and _are_plain(value.values())
    return kind is list and _are_plain(value)


def _are_plain(values: Iterable[Any]) -> bool:
    return all(type(value) in _PLAIN_KINDS or _is_plain(value) for value in values)


_PLAIN_KINDS = frozenset({str, bool, type(None)})


@cache
def find_codec() -> JsonCodec:
    """Return a function that reads JSON without fractions, and one that writes it sorted and
    without blanks.
    """
    try:
        import msgspec
    except ImportError:
        return PLAIN_CODEC
    decode = msgspec.json.Decoder(float_hook=_refuse_fraction).decode
    encode = msgspec.json.Encoder(order="sorted").encode
    return decode, lambda data: encode(data).decode()


def _refuse_fraction(text: str) -> float:
    raise ValueError(text)


PLAIN_CODEC: JsonCodec = (
    json.JSONDecoder(parse_float=_refuse_fraction).decode,
    json.JSONEncoder(
        sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode,
)


def _write_value(value: Any, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(encode_basestring(value))
    elif value is None or isinstance(value, bool):
        parts.append(_CONSTANTS[value])
    elif isinstance(value, int | float):
        parts.append(_write_number(value))
    elif isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda pair: pair[0].encode("utf-16-be", "surrogatepass"))
        _write_members(pairs, parts)
    else:
        _write_items(value, parts)


_CONSTANTS = {None: "null", True: "true", False: "false"}


def _write_members(pairs: Iterable[tuple[str, Any]], parts: list[str]) -> None:
    mark = "{"
    for key, value in pairs:
        parts.append(f"{mark}{encode_basestring(key)}:")
        _write_value(value, parts)
        mark = ","
    parts.append("}" if mark == "," else "{}")


def _write_items(values: Iterable[Any], parts: list[str]) -> None:
    mark = "["
    for value in values:
        parts.append(mark)
        _write_value(value, parts)
        mark = ","
    parts.append("]" if mark == "," else "[]")


def _write_number(value: float) -> str:
    """Return a number as ECMAScript writes it."""
    if isinstance(value, int):
        return str(value) if abs(value) <= MAX_EXACT_INT else _write_large(value)
    sign, digits, exponent = _split(value)
    point = len(digits) + exponent  # where the decimal point stands, counted from the first digit
    if not digits:
        return "0"
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * exponent}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _write_large(value: int) -> str:
    """Return a large whole number: as text, unless every reader would write it again as it is."""
    try:
        is_same = _write_number(float(value)) == str(value)
    except OverflowError:
        is_same = False
    return str(value) if is_same else f'"{value}"'


def _split(value: float) -> tuple[str, str, int]:
    """Return the sign, the shortest digits and the exponent of a number that is not infinite."""
    mantissa, _, exponent = repr(value).lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    digits = f"{whole}{fraction}".lstrip("0")
    shift = int(exponent or 0) - len(fraction)
    short = digits.rstrip("0")
    return "-" if value < 0 else "", short, shift + len(digits) - len(short)


# --- Records --------------------------------------------------------------------------------------


class ChainPosition(NamedTuple):
    """How far a writer has come: the sequence number and the hash of its newest record."""

    writer: str
    sequence: int = 0  # 0: it has written nothing yet
    hash: str = GENESIS

    def append(self, event: str) -> tuple[str, ChainPosition]:
        """Return the record of an event, which is given as canonical JSON, and the position behind
        it.

        The position is kept only if the record was written: a writer whose write may have failed
        goes on with a new chain.
        """
        writer, sequence, previous = self
        sequence += 1
        rest = f'"previous":"{previous}","sequence":{sequence},"writer":"{writer}"}},{event[1:]}'
        digest = sha256(f"{_START}{rest}".encode()).hexdigest()
        return f'{_START}"hash":"{digest}",{rest}', ChainPosition(writer, sequence, digest)


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """What a line of a chained log says about itself."""

    writer: str
    sequence: int
    previous: str
    hash: str
    is_intact: bool  # its hash is that of its text

    @property
    def position(self) -> ChainPosition:
        return ChainPosition(self.writer, self.sequence, self.hash)


def hash_text(text: bytes) -> str:
    return sha256(text).hexdigest()


def read_record(line: bytes) -> ChainRecord | None:
    """Return what a line says about itself, even if the line was cut; None if it is not a chain's
    record.
    """
    found = _RECORD.match(line)
    if found is None:
        return None
    hashed = sha256(_START.encode())
    hashed.update(memoryview(line.removesuffix(b"\n"))[found.start("rest") :])
    digest = found["hash"].decode()
    return ChainRecord(
        writer=found["writer"].decode(),
        sequence=int(found["sequence"]),
        previous=found["previous"].decode(),
        hash=digest,
        is_intact=hashed.hexdigest() == digest,
    )


# --- Heads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedWriter:
    """A writer in a head. ``is_closed``: it has ended, and later heads do not list it again."""

    position: ChainPosition
    is_closed: bool = False

    def to_dict(self) -> dict[str, Any]:
        position = self.position
        data = {"hash": position.hash, "sequence": position.sequence, "writer": position.writer}
        return {**data, "closed": True} if self.is_closed else data


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """What is left of a file that was deleted: its hash, and how far it went.

    ``at`` is when it was deleted, ``newest`` when its newest event was made, in seconds since 1970.
    """

    file: str
    sha256: str
    records: int
    newest: float
    at: float
    writers: tuple[ChainPosition, ...]

    def to_dict(self) -> dict[str, Any]:
        names = ("at", "file", "newest", "records", "sha256")
        writers = [ListedWriter(position).to_dict() for position in self.writers]
        return {**{name: getattr(self, name) for name in names}, "writers": writers}


@dataclass(frozen=True, slots=True)
class ChainHead:
    """How far all writers of a log had come at a moment.

    ``previous`` is the hash of the head before it, ``deleted`` what retention has deleted since
    then, ``retain_s`` for how long nothing may be deleted, ``key`` and ``signature`` are empty
    until it is signed.
    """

    log: str
    number: int
    at: str
    writers: tuple[ListedWriter, ...]
    previous: str = GENESIS
    retain_s: float = 0
    deleted: tuple[DeletedFile, ...] = ()
    key: str = ""
    signature: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the head as JSON data."""
        return {**self._list_fields(), "signature": self.signature}

    def _list_fields(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "deleted": [deleted.to_dict() for deleted in self.deleted],
            "key": self.key,
            "log": self.log,
            "number": self.number,
            "previous": self.previous,
            "retain_s": self.retain_s,
            "writers": [writer.to_dict() for writer in self.writers],
        }

    def to_json(self) -> str:
        """Return the line of the head, as canonical JSON."""
        return write_canonical(self.to_dict())

    def to_signed_bytes(self) -> bytes:
        """Return what the signature is of: the head without it."""
        return write_canonical(self._list_fields()).encode()

    @property
    def hash(self) -> str:
        return hash_text(self.to_json().encode())

    @property
    def open_writers(self) -> dict[str, ChainPosition]:
        """The writers that have not ended, those that were listed first coming first."""
        listed = (writer.position for writer in self.writers if not writer.is_closed)
        return {position.writer: position for position in listed}


def read_head(line: bytes | str) -> ChainHead | None:
    """Return the head of a line; None if it is not one."""
    text = line if isinstance(line, str) else line.decode(errors="replace")
    try:
        head = _make_head(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return head if head.to_json() == text.strip() else None


def _make_head(data: dict[str, Any]) -> ChainHead:
    return ChainHead(
        log=str(data["log"]),
        number=int(data["number"]),
        at=str(data["at"]),
        writers=tuple(map(_read_writer, data["writers"])),
        previous=str(data["previous"]),
        retain_s=float(data["retain_s"]),
        deleted=tuple(map(_read_deletion, data["deleted"])),
        key=str(data["key"]),
        signature=str(data["signature"]),
    )


def _read_writer(data: Mapping[str, Any]) -> ListedWriter:
    return ListedWriter(_read_position(data), is_closed=bool(data.get("closed", False)))


def _read_position(data: Mapping[str, Any]) -> ChainPosition:
    return ChainPosition(str(data["writer"]), int(data["sequence"]), str(data["hash"]))


def _read_deletion(data: Mapping[str, Any]) -> DeletedFile:
    return DeletedFile(
        file=str(data["file"]),
        sha256=str(data["sha256"]),
        records=int(data["records"]),
        newest=float(data["newest"]),
        at=float(data["at"]),
        writers=tuple(map(_read_position, data["writers"])),
    )


def follow_head(
    last: ChainHead | None,
    written: Iterable[ListedWriter],
    *,
    log: str,
    at: str,
    retain_s: float = 0,
    deleted: Iterable[DeletedFile] = (),
) -> ChainHead:
    """Return the head that follows the newest one: it lists what that one lists, with what was
    written since.

    The number of writers listed again that never ended is bounded; the heads before this one list
    them all.
    """
    listed = {} if last is None else dict(last.open_writers)
    closed = []
    for writer in written:
        listed.pop(writer.position.writer, None)
        if writer.is_closed:
            closed.append(writer)
        else:
            listed[writer.position.writer] = writer.position
    still_open = list(listed.values())[-MAX_LISTED_WRITERS:]
    return ChainHead(
        log=log if last is None else last.log,
        number=1 if last is None else last.number + 1,
        at=at,
        writers=(*map(ListedWriter, still_open), *closed),
        previous=GENESIS if last is None else last.hash,
        retain_s=max(retain_s, 0 if last is None else last.retain_s),
        deleted=tuple(deleted),
    )
