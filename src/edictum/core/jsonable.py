"""Any Python value as JSON, without ever raising: after a side effect has happened, "cannot be
serialised" is no answer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from enum import Enum
from typing import Any

MAX_DEPTH = 100
MAX_INT_BITS = 14_000
TOO_DEEP = "[nested too deeply]"
CIRCULAR = "[circular reference]"


def dumps(value: Any) -> str:
    """``json.dumps(value)`` for what JSON knows; for anything else the nearest JSON that
    ``jsonable`` finds.
    """
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(jsonable(value))
    except Exception:  # a dict or str subclass with methods that raise
        return json.dumps(show(value))


def jsonable(value: Any) -> Any:
    """``value`` as plain dicts, lists, text and numbers. NaN and infinities become text, bytes
    base64 unless they are text.
    """
    try:
        return _convert(value, ())
    except Exception:
        return show(value)


def show(value: Any) -> str:
    """``repr`` that cannot raise."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__} whose repr raises>"


def _convert(value: Any, parents: tuple[int, ...]) -> Any:
    kind = type(value)
    if value is None or kind in (str, bool):
        return value
    if isinstance(value, Enum):
        return _convert(value.value, parents)
    if isinstance(value, float):
        return float(value) if value - value == 0 else str(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return (
            int(value) if value.bit_length() < MAX_INT_BITS else hex(value)
        )  # Python refuses to print more decimal digits
    if id(value) in parents:
        return CIRCULAR
    if len(parents) >= MAX_DEPTH:
        return TOO_DEEP
    return _convert_object(value, (*parents, id(value)))


def _convert_object(value: Any, parents: tuple[int, ...]) -> Any:
    if isinstance(value, Mapping):
        return {_key(key): _convert(item, parents) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes(bytes(value))
    if isinstance(value, (list, tuple)):
        return [_convert(item, parents) for item in value]
    if isinstance(value, (set, frozenset)):
        return [_convert(item, parents) for item in _stable(value)]
    if isinstance(value, (date, time)):  # datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _convert(getattr(value, field.name, None), parents)
            for field in fields(value)
        }
    dump = getattr(value, "model_dump", None)  # pydantic models, which tools often return
    if callable(dump) and not isinstance(value, type):
        return _convert(dump(), parents)
    return _text(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _text(key)


def _text(value: Any) -> str:
    """What a person would print: ``str`` where the type defines it, else ``repr``."""
    try:
        return str(value)
    except Exception:
        return show(value)


def _bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _stable(items: Iterable[Any]) -> list[Any]:
    try:
        return sorted(items)
    except Exception:
        return sorted(items, key=show)
