"""Values that are computed for each call: another field, or a text with placeholders.

``{field: principal.user_id}`` is the value of that field. In a text, ``{principal.org_id}`` is
filled in; ``{{principal.org_id}}`` is the text itself, and other braces stay as they are. A part
that is missing or empty is an error, which denies the call: nothing can be compared with it. In a
text with a slash a placeholder stands for one name in a path, so that no value can leave the
directory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from edictum.contracts._selectors import (
    CustomSelectors,
    Selector,
    SelectorError,
    Subject,
    parse_selector,
    resolver,
)

_PLACEHOLDER = re.compile(r"\{\{([^{}]+)\}\}|\{([^{}]+)\}")
_SELECTOR_LIKE = re.compile(r"""[A-Za-z_][\w-]*(?:[.\[][\w.\[\]*"' -]*)?""")
_PATH_SIGNS = ("/", "\\")

_Compute = Callable[[Subject], Any]


class NotKnown(TypeError):
    """A value cannot be computed for this call."""

    is_for_model = True


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A selector in braces inside a text; ``escaped`` stands for itself."""

    name: str
    start: int
    end: int
    escaped: bool
    in_path: bool


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A value to compute: ``compute`` raises NotKnown when a part is missing."""

    selectors: tuple[Selector, ...]
    compute: _Compute


def find_placeholders(text: str) -> Iterator[Placeholder]:
    """Return whatever looks like a selector in braces; other braces are part of the text."""
    in_path = any(sign in text for sign in _PATH_SIGNS)
    for found in _PLACEHOLDER.finditer(text):
        name = found.group(1) or found.group(2)
        if _SELECTOR_LIKE.fullmatch(name) and (name == "environment" or "." in name):
            escaped = found.group(1) is not None
            yield Placeholder(name, found.start(), found.end(), escaped, in_path)


def read_field(selector: Selector, custom: CustomSelectors) -> Computed:
    """Return the value of a field."""
    resolve = resolver(selector, custom)

    def compute(subject: Subject) -> Any:
        value = resolve(subject)
        if value is None:
            raise NotKnown(f"'{selector.text}' is missing")
        return value

    return Computed((selector,), compute)


def compile_text(
    text: str, custom: CustomSelectors, timezone: str, *, as_path: bool = False
) -> Computed | str:
    """Return a text as Computed if it has placeholders, else itself.

    What is not a selector is part of the text. ``as_path``: each stands for one name in a path.
    """
    parts: list[tuple[Placeholder, Selector | None]] = []
    for part in find_placeholders(text):
        try:
            selector = None if part.escaped else parse_selector(part.name, custom, timezone)
        except SelectorError:
            continue
        parts.append((replace(part, in_path=part.in_path or as_path), selector))
    return _fill(text, parts, custom) if parts else text


def _fill(
    text: str, parts: list[tuple[Placeholder, Selector | None]], custom: CustomSelectors
) -> Computed:
    """Return a text whose placeholders are filled in; those without a selector stand as written."""
    pieces: list[str | _Compute] = []
    at = 0
    for part, selector in parts:
        pieces.append(text[at : part.start])
        pieces.append(_piece(part, selector, custom))
        at = part.end
    pieces.append(text[at:])
    selectors = tuple(selector for _, selector in parts if selector is not None)
    return Computed(
        selectors,
        lambda subject: "".join(it if isinstance(it, str) else it(subject) for it in pieces),
    )


def _piece(part: Placeholder, selector: Selector | None, custom: CustomSelectors) -> str | _Compute:
    if selector is None:
        return "{" + part.name + "}"
    value = read_field(selector, custom)
    return lambda subject: _as_text(part, value.compute(subject))


def _as_text(part: Placeholder, value: Any) -> str:
    """Return a value as a part of a text, or raise NotKnown."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        kind = type(value).__name__
        raise NotKnown(f"'{part.name}' is {kind}, and only text and whole numbers are filled in")
    text = str(value)
    if not text:
        raise NotKnown(f"'{part.name}' is empty")
    if part.in_path and (text in (".", "..") or any(sign in text for sign in (*_PATH_SIGNS, "\0"))):
        raise NotKnown(f"'{part.name}' is not one name of a path: {text!r:.60}")
    return text


def compile_directories(value: Any, custom: CustomSelectors, timezone: str) -> Any:
    """Return a directory, or several; those with placeholders are Computed."""
    if isinstance(value, tuple):
        return tuple(compile_directories(item, custom, timezone) for item in value)
    return compile_text(value, custom, timezone, as_path=True) if isinstance(value, str) else value


def has_computed(value: Any) -> bool:
    """Return whether a value, or an item of it, is computed for each call."""
    return any(type(item) is Computed for item in (value if isinstance(value, tuple) else (value,)))


def compute_value(value: Any, subject: Subject) -> Any:
    """Return a value for a call, with its Computed parts replaced."""
    if isinstance(value, tuple):
        return tuple(compute_value(item, subject) for item in value)
    return value.compute(subject) if type(value) is Computed else value


def compute_list(items: list[Any], kind: type[tuple[Any, ...] | list[Any]]) -> Computed:
    """Return a list as Computed, because some of its items are."""
    selectors = tuple(it for item in items if type(item) is Computed for it in item.selectors)
    return Computed(
        selectors,
        lambda subject: kind(compute_value(item, subject) for item in items),
    )
