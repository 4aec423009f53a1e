"""The one walk through values: bounded, and safe with whatever a tool or a model sends.

``Visitor.visit`` takes a value apart level by level, counts the levels and detects values that
contain themselves. Its subclasses decide what to make of the parts: here JSON, canonical text and
changed text; in ``freeze`` snapshots; in ``redaction`` what may be written down.

There is one limit, ``MAX_VALUE_DEPTH``: more than honest data needs, and few enough that two Python
frames per level fit into the recursion limit below a framework's own. Beyond it a value is
*replaced* by ``TOO_DEEP`` where it is shown or written down, and *refused* with ``TooDeepError``
where a call is frozen or a digest is made.
"""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from enum import Enum
from math import isfinite
from operator import itemgetter
from typing import Any, ClassVar

from edictum.core.library_values import NOT_OPENED, NotReadableError, Table, open_value

MAX_VALUE_DEPTH = 200
MAX_INT_BITS = 14_000  # Python refuses to print more decimal digits
TOO_DEEP = "[nested too deeply]"
CIRCULAR = "[circular reference]"

SCALARS = frozenset({str, int, float, bool, type(None), bytes, complex})


class TooDeepError(ValueError):
    """A value is nested more than ``MAX_VALUE_DEPTH`` levels deep, or contains itself."""

    def __init__(self) -> None:
        super().__init__(
            f"a value is nested more than {MAX_VALUE_DEPTH} levels deep, or contains itself"
        )


class Visitor(ABC):
    """Walk through a value. Each method returns the replacement of one part. ``scalar`` gets text,
    numbers, bytes and None; the other methods get one container each and call ``visit`` on its
    items.
    """

    __slots__ = ("_parents",)

    def __init__(self) -> None:
        self._parents: list[int] = []

    def visit(self, value: Any) -> Any:
        kind = type(value)
        if kind in SCALARS:
            return self.scalar(value)
        parents = self._parents
        if id(value) in parents:
            return self.circular(value)
        if len(parents) >= MAX_VALUE_DEPTH:
            return self.too_deep(value)
        parents.append(id(value))
        try:
            if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 # quick
                return self.mapping(value)
            if isinstance(value, (list, tuple)):
                return self.sequence(value)
            if isinstance(value, (set, frozenset)):
                return self.members(value)
            return self.other(value)
        except RecursionError:
            return self.too_deep(value)
        except Exception as exc:  # user-supplied methods can raise anything
            return self.unreadable(value, exc)
        finally:
            parents.pop()

    def scalar(self, value: Any) -> Any:
        return value

    @abstractmethod
    def mapping(self, value: Any) -> Any: ...

    @abstractmethod
    def sequence(self, value: Any) -> Any: ...

    @abstractmethod
    def members(self, value: Any) -> Any: ...

    @abstractmethod
    def other(self, value: Any) -> Any: ...

    def too_deep(self, value: Any) -> Any:
        raise TooDeepError

    def circular(self, value: Any) -> Any:
        return self.too_deep(value)

    def unreadable(self, value: Any, error: Exception) -> Any:
        raise error


def show(value: Any) -> str:
    """Return ``repr(value)``, or a text in its place when that raises."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__} whose repr raises>"


def get_field_names(value: Any) -> list[str] | None:
    """Return the names of the fields of a dataclass or an attrs class, else None."""
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    declared = getattr(type(value), "__attrs_attrs__", None)
    return None if declared is None else [field.name for field in declared]


def held_fields(value: Any) -> Any:
    """Return the visible contents of an object: the fields of a dataclass, an attrs class or a
    pydantic model, else None.
    """
    if isinstance(value, type):
        return None
    names = get_field_names(value)
    if names is not None:
        return {name: getattr(value, name, None) for name in names}
    dump = getattr(value, "model_dump", None)
    if not callable(dump):
        return None
    return dump(warnings=False) if is_pydantic(value) else dump()


def is_pydantic(value: Any) -> bool:
    return hasattr(type(value), "__pydantic_serializer__")


_OWN_JSON = frozenset({str, bool, type(None)})


def _are_json(items: Sequence[Any]) -> bool:
    """Return whether all items can stay as they are in JSON: texts, or numbers that every reader
    knows.
    """
    kinds = set(map(type, items))
    if kinds == {int}:
        return bool(max(items).bit_length() < 64 > min(items).bit_length())
    return kinds <= _OWN_JSON or (kinds == {float} and isfinite(sum(items)))


# --- JSON -----------------------------------------------------------------------------------------


class JsonVisitor(Visitor):
    """Make plain dicts, lists, texts and numbers of a value. Every text passes through ``text``."""

    __slots__ = ()

    def text(self, text: str) -> Any:
        return text

    def scalar(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool:
            return value
        if kind is float:
            return value if value - value == 0 else self.text(str(value))
        if kind is int:
            return value if value.bit_length() < MAX_INT_BITS else self.text(hex(value))
        return self.text(_decode(value) if kind is bytes else str(value))

    def mapping(self, value: Any) -> Any:
        made = {}
        for key, item in value.items():  # a comprehension would be one more frame per level
            made[key_text(key)] = self.visit(item)
        return made

    def sequence(self, value: Any) -> Any:
        if type(self).text is JsonVisitor.text and _are_json(value):
            return list(value)
        return [*map(self.visit, value)]

    def members(self, value: Any) -> Any:
        return self.sequence(_sort(value))

    def other(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return self.visit(value.value)
        for kind in (str, int, float):
            if isinstance(value, kind):
                return self.scalar(kind(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.scalar(bytes(value))
        if isinstance(value, (date, time)):  # datetime is a date
            return self.text(value.isoformat())
        if isinstance(value, timedelta):
            return self.scalar(value.total_seconds())
        opened = open_value(value)
        if type(opened) is Table:
            return self.table(opened)
        held = self.read_fields(value) if opened is NOT_OPENED else opened
        if held is None and opened is NOT_OPENED:
            return self.text(_print(value))
        return self.visit(held)

    def table(self, table: Table) -> Any:
        """Return a frame as its columns, so that the names of columns are keys."""
        return self.mapping(table.by_name())

    def read_fields(self, value: Any) -> Any:
        return held_fields(value)

    def too_deep(self, value: Any) -> Any:
        return self.text(TOO_DEEP)

    def circular(self, value: Any) -> Any:
        return self.text(CIRCULAR)

    def unreadable(self, value: Any, error: Exception) -> Any:
        return self.text(show(value))


class _WrittenJson(JsonVisitor):
    """JSON for a reader: frames are CSV."""

    __slots__ = ()

    def table(self, table: Table) -> Any:
        return self.text(table.to_text(self._cell))

    def _cell(self, cell: Any) -> Any:
        shown = self.visit(cell)
        return json.dumps(shown) if isinstance(shown, (dict, list)) else shown


def to_json(value: Any) -> Any:
    """Return the value as plain dicts, lists, texts and numbers; never raises.

    NaN and infinities become text, bytes base64 unless they are text, frames CSV.
    """
    return _WrittenJson().visit(value)


class _SearchedJson(JsonVisitor):
    """JSON of everything that a value contains, even of fields that its ``repr`` hides."""

    __slots__ = ()

    def scalar(self, value: Any) -> Any:
        return value.decode(errors="replace") if type(value) is bytes else super().scalar(value)

    def sequence(self, value: Any) -> Any:
        names = getattr(value, "_fields", None)
        if names is None or not isinstance(value, tuple):
            return super().sequence(value)
        return self.mapping(dict(zip(names, value, strict=True)))

    def read_fields(self, value: Any) -> Any:
        shown = held_fields(value)
        if shown is None or not is_pydantic(value):
            return shown
        return [shown, {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}]

    def unreadable(self, value: Any, error: Exception) -> Any:
        if isinstance(error, NotReadableError):
            raise error
        return super().unreadable(value, error)


def to_searched_json(value: Any) -> Any:
    """Return everything that a value contains, to be searched: as ``to_json`` does, but with frames
    as columns by name. Raises NotReadableError for a value that cannot be read whole.
    """
    return _SearchedJson().visit(value)


# json.dumps would make an encoder each time
_encode = json.JSONEncoder(allow_nan=False).encode
_encode_sorted = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def dumps(value: Any, encode: Callable[[Any], str] = _encode) -> str:
    """Return the JSON text of any value: what ``json`` makes of it, else that of ``to_json``."""
    try:
        text = encode(value)
    except Exception:  # not JSON, too deep, or a subclass with methods that raise
        return encode(to_json(value))
    may_be_deep = text.count("[") + text.count("{") > MAX_VALUE_DEPTH
    return encode(to_json(value)) if may_be_deep and _is_too_deep(value) else text


def write_sorted(value: Any) -> str:
    """Return the JSON text of any value, with sorted keys and without blanks."""
    return dumps(value, _encode_sorted)


def _is_too_deep(value: Any) -> bool:
    """Return whether JSON data has too many levels of containers, which are counted one by one."""
    level = [value]
    for _ in range(MAX_VALUE_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list, tuple))
        ]
        if not level:
            return False
    return True


def key_text(key: Any) -> str:
    return key if isinstance(key, str) else _print(key)


def _print(value: Any) -> str:
    """Return what a person would print: ``str`` where the type defines it, else ``repr``."""
    try:
        return str(value)
    except Exception:
        return show(value)


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _sort(items: Iterable[Any]) -> list[Any]:
    try:
        return sorted(items)
    except Exception:
        return sorted(items, key=show)


# --- The same value? ------------------------------------------------------------------------------


class _Canonical(Visitor):
    """Write one text for equal values into ``parts``, each with a mark of its type and its length.

    ``exact`` tells apart what a tool may tell apart: 1 and 1.0, and texts that only look alike.
    Without it the form follows RFC 8785: one way to write a number, and NFC text.
    """

    __slots__ = ("exact", "parts")

    def __init__(self, exact: bool) -> None:
        super().__init__()
        self.exact = exact
        self.parts: list[str] = []

    def scalar(self, value: Any) -> None:
        kind = type(value)
        if kind is str:
            self.parts.append(self._text(value))
        elif value is None or kind is bool:
            self.parts.append(f"{value};")
        elif kind is int:
            self.parts.append(f"n{value:x};")
        elif kind is float:
            whole = not self.exact and value.is_integer()
            self.parts.append(f"n{int(value):x};" if whole else f"f{value!r};")
        else:
            self.parts.append(f"b{value.hex()};" if kind is bytes else f"c{value!r};")

    def _text(self, value: str) -> str:
        text = value if self.exact or value.isascii() else normalize(value)
        return f"s{len(text)}:{text}"

    def mapping(self, value: Any) -> None:
        pairs = [(*self._key(key), item) for key, item in value.items()]
        self.parts.append("(")
        for text, _, item in sorted(pairs, key=itemgetter(0, 1)):
            self.parts.append(text)
            self.visit(item)
        self.parts.append(")")

    def _key(self, key: Any) -> tuple[str, str]:
        """Return the text of a key, and a second text by which keys with the same first text are
        sorted.
        """
        if type(key) is str:
            return self._text(key), "" if key.isascii() else key
        return "".join(self._apart(key)), show(key)

    def sequence(self, value: Any) -> None:
        self.parts.append("[")
        for item in value:
            self.visit(item)
        self.parts.append("]")

    def members(self, value: Any) -> None:
        self.parts.append("{")
        for parts in sorted(map(self._apart, value)):
            self.parts += parts
        self.parts.append("}")

    def _apart(self, value: Any) -> list[str]:
        """Return the parts of a key or of a set's member, which are sorted by them."""
        parts, self.parts = self.parts, []
        try:
            self.visit(value)
            return self.parts
        finally:
            self.parts = parts

    def other(self, value: Any) -> Any:
        kind = type(value)
        self.parts.append(f"o{kind.__module__}.{kind.__qualname__}:")
        opened = open_value(value)
        if type(opened) is Table:
            opened = [opened.names, opened.columns]
        if opened is not NOT_OPENED:
            return self.visit(opened)
        held = value.value if isinstance(value, Enum) else held_fields(value)
        return self.visit(to_json(value) if held is None else held)

    def unreadable(self, value: Any, error: Exception) -> None:
        if isinstance(error, TooDeepError):
            raise error
        self.parts.append(f"!{type(value).__name__}:{id(value)};")


NAN = "fnan;"


def _parts_of(value: Any, *, exact: bool) -> list[str]:
    writer = _Canonical(exact)
    writer.visit(value)
    return writer.parts


def canonical(value: Any) -> str:
    """Return one text for all values that mean the same, however they were written; never raises.

    1 and 1.0 mean the same, as do texts that NFC makes equal; True and 1, ``{1: 2}`` and ``{"1":
    2}`` do not. A value that is too deep equals only itself.
    """
    try:
        return "".join(_parts_of(value, exact=False))
    except TooDeepError:
        return f"!{type(value).__name__}:{id(value)}"


def identity(value: Any) -> str:
    """Return a short key that is equal for the values whose canonical texts are equal."""
    text = _write_flat(value) or canonical(value)
    return text if len(text) <= 256 else digest(text)


def _write_flat(value: Any) -> str | None:
    """Return the canonical text of a dict of ASCII texts and whole numbers, which most arguments
    are, in half the time; None for anything else.
    """
    if getattr(type(value), "items", None) is not dict.items:
        return None
    pairs = []
    for key, item in value.items():
        if type(key) is not str or not key.isascii():
            return None
        if type(item) is str and item.isascii():
            pairs.append(f"s{len(key)}:{key}s{len(item)}:{item}")
        elif type(item) is int:
            pairs.append(f"s{len(key)}:{key}n{item:x};")
        else:
            return None
    return f"({''.join(sorted(pairs))})"


def digest(*values: Any) -> str:
    """Return a SHA-256 that differs for different values, even if only their types differ; raises
    TooDeepError.
    """
    text = "".join(part for value in values for part in _parts_of(value, exact=True))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same to every tool. NaN differs even from itself."""
    try:
        parts = _parts_of(one, exact=True)
        return NAN not in parts and parts == _parts_of(other, exact=True)
    except TooDeepError:
        return False


def has_same_form(given: Any, made: Any, depth: int = 0) -> bool:
    """Return whether a structure has the keys and types of another; a None in ``given`` matches
    anything.
    """
    if isinstance(given, dict) and isinstance(made, dict) and depth < MAX_VALUE_DEPTH:
        return given.keys() == made.keys() and all(
            has_same_form(given[key], made[key], depth + 1) for key in given
        )
    return given is None or type(given) is type(made)


def normalize(text: str) -> str:
    """Return the text in Unicode's normal form C."""
    return unicodedata.normalize("NFC", text)


# --- Text inside of a structure -------------------------------------------------------------------


class Rebuilder(Visitor):
    """Rebuild plain containers by a table from exact types to constructors. ``other`` gets whatever
    is not in the table.
    """

    __slots__ = ()
    makers: ClassVar[dict[type[Any], Callable[[Iterable[Any]], Any]]]

    def mapping(self, value: Any) -> Any:
        make = self.makers.get(type(value))
        if make is None:
            return self.other(value)
        return make(zip(map(self.key, value), map(self.visit, value.values()), strict=True))

    def sequence(self, value: Any) -> Any:
        make = self.makers.get(type(value))
        return self.other(value) if make is None else make(map(self.visit, value))

    def key(self, key: Any) -> Any:
        return key

    def members(self, value: Any) -> Any:
        return self.sequence(value)


MANY = 64  # items that are searched at once
_SEARCHED_TOGETHER = SCALARS - {bytes}


class TextChanger(Rebuilder):
    """Change every text inside a structure; plain containers keep their types. ``may_change`` gets
    several texts at once, joined by newlines, and returns whether any of them may change.
    """

    __slots__ = ("change", "may_change")

    def __init__(
        self, change: Callable[[str], str], may_change: Callable[[str], bool] | None = None
    ) -> None:
        super().__init__()
        self.change = change
        self.may_change = may_change

    def scalar(self, value: Any) -> Any:
        return self.change(value) if type(value) is str else value

    def sequence(self, value: Any) -> Any:
        if self.may_change is None or type(value) is not list or len(value) <= MANY:
            return super().sequence(value)
        made: list[Any] = []
        for start in range(0, len(value), MANY):
            part = value[start : start + MANY]
            made += part if self._stays(part) else map(self.visit, part)
        return made

    def _stays(self, items: list[Any]) -> bool:
        """Return whether none of the items can change: one search for all their texts."""
        assert self.may_change is not None
        if not _SEARCHED_TOGETHER.issuperset(map(type, items)):
            return False
        texts = [item for item in items if type(item) is str]
        return not texts or not self.may_change("\n".join(texts))

    def key(self, key: Any) -> Any:
        return self.visit(key)

    def other(self, value: Any) -> Any:
        return self.change(value) if isinstance(value, str) else value

    def too_deep(self, value: Any) -> Any:
        return TOO_DEEP


def change_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with ``change`` applied to every text in it, keys included.

    Dicts, lists, tuples and sets are rebuilt with their types; other objects stay as they are.
    """
    return TextChanger(change).visit(value)


def _distinct(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict in which keys that became equal are numbered, so that no item is lost."""
    made: dict[Any, Any] = {}
    numbers: Counter[Any] = Counter()
    for key, item in pairs:
        name = key
        while name in made:
            numbers[key] += 1
            name = f"{key} ({numbers[key] + 1})"
        made[name] = item
    return made


TextChanger.makers = {dict: _distinct} | {kind: kind for kind in (list, tuple, set, frozenset)}
