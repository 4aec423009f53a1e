"""One text for equal arguments, so that the same call is recognised however it was written. It
never raises.

The form follows RFC 8785 where JSON reaches: sorted names, NFC text, one way to write a number (1
and 1.0 are one). Every value carries a mark of its type, so that ``{1: 2}`` and ``{"1": 2}``
differ, and every text its length, so that no two structures read alike.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Hashable, Mapping
from typing import Any

from edictum.core.freeze import FlatDict, FrozenDict
from edictum.core.jsonable import jsonable, show

MAX_DEPTH = 150
SHORT = 256


def canonical(value: Any) -> str:
    """The canonical text of any value. Objects that JSON does not know are told apart by type and
    content as far as possible.
    """
    if value is None:
        return "None;"
    parts: list[str] = []
    try:
        _write(value, parts.append, 0)
    # methods of foreign objects can raise anything; then only this very object is equal to itself
    except Exception:
        return f"!{type(value).__name__}:{id(value)}"
    return "".join(parts)


def identity(arguments: Any) -> Hashable:
    """A key that is equal for exactly those arguments whose canonical texts are equal. What is flat
    and short, as arguments nearly always are, needs no text: its names and values are the key.
    """
    if type(arguments) is FlatDict:
        for name, value in arguments.items():
            kind = type(value)
            if (
                kind is not int
                and (kind is not str or len(value) > SHORT or not value.isascii())
                and value is not None
            ):
                break
            if not name.isascii():
                break
        else:
            return frozenset(arguments.items())
    key = _flat(arguments)
    return key if key is not None else _named(arguments)


def _flat(arguments: Any) -> frozenset[tuple[str, Hashable]] | None:
    """The same key, also for values that can be written in more than one way; None for what is not
    flat and short.
    """
    if type(arguments) not in DICTS or not all(
        type(name) is str and type(value) in SIMPLE for name, value in arguments.items()
    ):
        return None
    names = [normal(name) for name in arguments]
    values = [_simple(value) for value in arguments.values()]
    if any(type(value) is str and len(value) > SHORT for value in values) or len(set(names)) < len(
        names
    ):
        return None
    return frozenset(zip(names, values, strict=True))


DICTS = frozenset({dict, FlatDict, FrozenDict})
SIMPLE = frozenset({str, int, float, bool, type(None)})


def _simple(value: Any) -> Hashable:
    kind = type(value)
    if kind is str:
        return normal(value)
    if kind is float:
        return (
            int(value) if value.is_integer() else (kind, repr(value))
        )  # by its text, since nan is not equal to itself
    return (kind, value) if kind is bool else value  # True is equal to 1


def _named(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= SHORT else digest(text)


def normal(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def digest(*parts: str) -> str:
    """A short, fixed-length name for texts; each is preceded by its length, so that they cannot run
    into each other.
    """
    return hashlib.sha256(
        "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    ).hexdigest()


def _write(value: Any, put: Any, depth: int) -> None:
    kind = type(value)
    if kind is str:
        text = value if value.isascii() else normal(value)
        put(f"s{len(text)}:{text}")
    elif value is None or kind is bool:
        put(f"{value};")
    elif kind is int or kind is float:
        put(_number(value))
    elif depth > MAX_DEPTH:
        raise RecursionError
    elif isinstance(value, Mapping):
        _write_mapping(value, put, depth)
    elif isinstance(value, (list, tuple)):
        put("[")
        for item in value:
            _write(item, put, depth + 1)
        put("]")
    elif isinstance(value, (set, frozenset)):
        put("{" + "".join(sorted(canonical(item) for item in value)) + "}")
    else:
        _write_foreign(value, put)


def _write_mapping(value: Mapping[Any, Any], put: Any, depth: int) -> None:
    put("(")
    if all(type(key) is str for key in value):
        named = [(key if key.isascii() else normal(key), item) for key, item in value.items()]
        written = [(f"s{len(key)}:{key}", item) for key, item in sorted(named, key=_first)]
    else:
        written = sorted(((canonical(key), item) for key, item in value.items()), key=_first)
    for text, item in written:
        put(text)
        _write(item, put, depth + 1)
    put(")")


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _number(value: float) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"n{value:x};" if isinstance(value, int) else f"f{value!r};"


def _write_foreign(value: Any, put: Any) -> None:
    shown = show(jsonable(value))
    put(f"o{type(value).__module__}.{type(value).__qualname__}:{len(shown)}:{shown}")
