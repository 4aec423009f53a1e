"""Selectors: which value of a call a condition looks at.

A selector is a root and a path: ``args.items[*].path``, ``principal.claims."team.name"``,
``result.rows.0``. ``None`` and "not there" are the same thing, *missing*. ``[*]`` stands for any
element of a list: a condition holds when it holds for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from edictum.contracts.problems import closest, listed
from edictum.core.call import Principal, ToolCall
from edictum.core.values import MAX_VALUE_DEPTH, to_json
from edictum.errors import EdictumConfigError

STAR: Final = "[*]"
PRINCIPAL_FIELDS = tuple(name for name in Principal.__slots__ if name != "claims")
COUNTERS = ("attempts", "executions", "successes", "failures", "consecutive_failures", "in_flight")
TOOL_COUNTERS = ("per_tool", "successes_per_tool")
ROOTS = (
    "environment",
    "tool",
    "args",
    "principal",
    "output",
    "result",
    "env",
    "metadata",
    "session",
)
LISTS = (list, tuple, set, frozenset)
_SEGMENT = re.compile(
    r"""\.(?:"([^"]+)"|'([^']+)'|([^.\[\]"']+))|\[(?:(\d+)|(\*)|"([^"]+)"|'([^']+)')\]"""
)
_ROOT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class SelectorError(ValueError):
    """A selector that can never mean anything; ``hint`` says what to write."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SelectorMismatch(TypeError):
    """At run time: the value is not what the selector expects, such as ``[*]`` on something that is
    no list.
    """


@dataclass(frozen=True, slots=True)
class Selector:
    """``text`` as it was written, its root, and the steps behind the root."""

    text: str
    root: str
    path: tuple[str, ...] = ()

    @property
    def wild(self) -> bool:
        return STAR in self.path

    @property
    def of_result(self) -> bool:
        return self.root == "result"

    @property
    def whole_text(self) -> bool:
        """The result as text: ``output.text``, ``result.text``."""
        return (
            self.root == "result"
            and self.path == ("text",)
            and '"' not in self.text
            and "'" not in self.text
        )


def parse_selector(text: str, custom: Mapping[str, Any] | None = None) -> Selector:
    """The selector that a text stands for; raises SelectorError when there is no such thing."""
    found = _ROOT.match(text)
    root = found.group() if found else text
    path = _path(text, len(root))
    if custom and root in custom:
        if not path:
            raise SelectorError(f"'{text}' names no field", f"Write for example {root}.name.")
        return Selector(text, root, path)
    return _builtin(text, root, path, tuple(custom or ()))


@lru_cache(maxsize=4_096)
def _builtin(text: str, root: str, path: tuple[str, ...], custom: tuple[str, ...]) -> Selector:
    check = _CHECKS.get(root)
    if check is None:
        known = [*ROOTS, *custom]
        raise SelectorError(
            f"unknown selector '{text}'",
            f"{_near(root, text, known)}A selector starts with one of: {listed(known)}.",
        )
    check(text, path)
    return Selector(text, "result" if root == "output" else root, path)


def _near(root: str, text: str, known: list[str]) -> str:
    """A suggestion for the whole selector, when only its root is misspelt."""
    suggestion = closest(root, known)
    if suggestion:
        name = suggestion.split("'")[1]
        return f"Did you mean '{name}{text[len(root) :]}'? "
    return ""


@lru_cache(maxsize=4_096)
def _path(text: str, at: int) -> tuple[str, ...]:
    steps: list[str] = []
    while at < len(text):
        found = _SEGMENT.match(text, at)
        if found is None:
            raise SelectorError(
                f"'{text}' cannot be read from character {at + 1} on",
                'Write steps as .name, ."quoted.name", [0] or [*].',
            )
        _check_step(text, found.group(3))
        star = found.group(5)
        steps.append(STAR if star else next(group for group in found.groups() if group is not None))
        at = found.end()
    return tuple(steps)


def _check_step(text: str, name: str | None) -> None:
    """A plain name that looks as if it meant more than a key of this name: as a key it would hardly
    ever be found.
    """
    if name is None:
        return
    if "*" in name:
        raise SelectorError(
            f"'{text}' has a '*' among its names",
            'Write [*] for the elements of a list, or ."*" for a key of this name.',
        )
    if re.fullmatch(r"-\d+", name):
        raise SelectorError(
            f"'{text}' counts from the end",
            f'Elements are counted from the start: [0]; a key of this name is ."{name}".',
        )
    if name != name.strip():
        raise SelectorError(
            f"'{text}' has a space beside a name",
            f'Remove it, or write ."{name}" for a key of this name.',
        )


def _needs_path(text: str, path: tuple[str, ...]) -> None:
    if not path:
        raise SelectorError(f"'{text}' names no field", f"Write for example {text}.name.")


def _no_path(text: str, path: tuple[str, ...]) -> None:
    if path:
        raise SelectorError(
            f"'{text}' has no fields", f"Write just '{text.split('.')[0].split('[')[0]}'."
        )


def _check_tool(text: str, path: tuple[str, ...]) -> None:
    if path != ("name",):
        raise SelectorError(f"unknown selector '{text}'", "Write 'tool.name'.")


def _check_env(text: str, path: tuple[str, ...]) -> None:
    if len(path) != 1 or path[0] == STAR:
        raise SelectorError(
            f"'{text}' names no environment variable", "Write for example env.DEPLOY_TARGET."
        )


def _check_principal(text: str, path: tuple[str, ...]) -> None:
    _needs_path(text, path)
    if path[0] == "claims":
        if len(path) == 1:
            raise SelectorError(
                f"'{text}' names no claim", "Write for example principal.claims.team."
            )
        return
    if path[0] not in PRINCIPAL_FIELDS:
        known = [*PRINCIPAL_FIELDS, "claims"]
        raise SelectorError(
            f"a principal has no field '{path[0]}'",
            f"{closest(path[0], known)}Known fields: {listed(known)}.",
        )
    if len(path) > 1:
        raise SelectorError(
            f"'principal.{path[0]}' has no fields", f"Write just 'principal.{path[0]}'."
        )


def _check_session(text: str, path: tuple[str, ...]) -> None:
    _needs_path(text, path)
    if path[0] in TOOL_COUNTERS:
        if len(path) != 2 or path[1] == STAR:
            raise SelectorError(
                f"'{text}' names no tool", f"Write for example session.{path[0]}.read_file."
            )
        return
    if path[0] not in COUNTERS or len(path) > 1:
        known = [*COUNTERS, *TOOL_COUNTERS]
        raise SelectorError(
            f"a session has no counter '{'.'.join(path)}'",
            f"{closest(path[0], known)}Known counters: {listed(known)}.",
        )


def _any_path(text: str, path: tuple[str, ...]) -> None:
    """The value itself is fine as well."""


_CHECKS: dict[str, Callable[[str, tuple[str, ...]], None]] = {
    "environment": _no_path,
    "tool": _check_tool,
    "args": _needs_path,
    "principal": _check_principal,
    "output": _any_path,
    "result": _any_path,
    "env": _check_env,
    "metadata": _needs_path,
    "session": _check_session,
}


def check_custom_selectors(
    custom: Mapping[str, Any] | None,
) -> dict[str, Callable[[ToolCall], Any]]:
    """The custom selectors of a guard, or an error that says what is wrong with them."""
    custom = dict(custom or {})
    if clash := sorted(set(custom) & set(ROOTS)):
        raise EdictumConfigError(
            f"Custom selector prefixes clash with built-in selectors: {clash}.",
            hint="Choose other names.",
        )
    for name, function in custom.items():
        if not isinstance(name, str) or not _ROOT.fullmatch(name):
            raise EdictumConfigError(
                f"Custom selector {name!r} is not a name.", hint="Use letters, digits, '_' and '-'."
            )
        if not callable(function):
            raise EdictumConfigError(
                f"Custom selector '{name}' is not callable.",
                hint="Pass a function of the call that returns a dict.",
            )
    return custom


# --- Values ---------------------------------------------------------------------------------------


def step(value: Any, key: str) -> Any:
    """One step into a dict or a list; None when there is nothing."""
    if isinstance(value, Mapping):
        found = value.get(key)
        return value.get(int(key)) if found is None and key.isdecimal() else found
    if isinstance(value, (list, tuple)) and key.isdecimal():
        return value[int(key)] if int(key) < len(value) else None
    return None


_NOT_OPENED = (str, bytes, bytearray, int, float, complex, bool, type(None), set, frozenset)


def result_step(value: Any, key: str) -> Any:
    """As ``step``; objects are opened as well, because tools return them (a response, a model, a
    dataclass).
    """
    if isinstance(value, (Mapping, list, tuple)):
        found = step(value, key)
        if found is not None or isinstance(value, (Mapping, list)):
            return found
    if isinstance(value, _NOT_OPENED) or key.startswith("_") or not key.isidentifier():
        return None
    found = getattr(value, key, None)
    return None if callable(found) else found


def walk(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = step(value, key)
        if value is None:
            return None
    return value


def walk_result(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = result_step(value, key)
        if value is None:
            return None
    return value


def spread(value: Any, path: tuple[str, ...], one: Callable[[Any, str], Any] = step) -> list[Any]:
    """All values that a path with ``[*]`` reaches; ``[None]`` when it reaches nothing."""
    values = [value]
    for key in path:
        values = [
            found
            for item in values
            for found in (_elements(item) if key == STAR else (one(item, key),))
        ]
    return values or [None]


def _elements(value: Any) -> list[Any]:
    if value is None:
        return [None]
    if not isinstance(value, LISTS):
        raise SelectorMismatch(
            f"[*] stands for the elements of a list, and this is {type(value).__name__}"
        )
    return list(value)


def text_of(result: Any) -> str | None:
    """A result as text. What printing would escape (a line break, a quote) or leave out (a field
    with ``repr=False``) is added, so that patterns see it.
    """
    if result is None or isinstance(result, str):
        return result
    if isinstance(result, (bytes, bytearray)):
        return result.decode("utf-8", "replace")
    whole = str(result)
    opened = [str(to_json(result))] if _hides(result) else []
    escaped = [text for text in texts(result) if repr(text)[1:-1] != text]
    return "\n".join([whole, *opened, *escaped]) if opened or escaped else whole


_PRINTED_WHOLE = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None)})


def _hides(value: Any, depth: int = 0) -> bool:
    """Whether something in a structure prints itself in its own way, and may leave out what it
    would show as JSON.
    """
    kind = type(value)
    if kind in _PRINTED_WHOLE:
        return False
    if depth > MAX_VALUE_DEPTH:
        return True
    if kind is dict:
        return any(_hides(item, depth + 1) for pair in value.items() for item in pair)
    return kind not in LISTS or any(_hides(item, depth + 1) for item in value)


def texts(value: Any, depth: int = 0) -> list[str]:
    """Every text inside a structure, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, (bytes, bytearray)):
        return [value.decode("utf-8", "replace")]
    if depth > MAX_VALUE_DEPTH:
        return []
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in texts(item, depth + 1)]
    if isinstance(value, LISTS):
        return [text for item in value for text in texts(item, depth + 1)]
    opened = to_json(value)  # a dataclass, a model: what its printing escapes is looked at as well
    return texts(opened, depth + 1) if isinstance(opened, (dict, list)) else []


def environment_variable(name: str) -> Any:
    """A process variable, read now: a flag or a number when it looks like one."""
    text = os.environ.get(name)
    if text is None:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            number = convert(text)
        except ValueError:
            continue
        return number if isfinite(number) else text
    return text


@dataclass(frozen=True, slots=True)
class Subject:
    """What conditions are asked about."""

    call: ToolCall
    result: Any = None
    session: Any = None
    violation: str | None = None  # what a sandbox found out of bounds


Resolver = Callable[[Subject], Any]


def resolver(selector: Selector, custom: Mapping[str, Callable[[ToolCall], Any]]) -> Resolver:
    """A function from the subject to the value, or to the list of values for a selector with
    ``[*]``.
    """
    path = selector.path
    if selector.root in custom:
        function = custom[selector.root]
        return lambda subject: _reach(_called(function, subject.call), path, step)
    if selector.whole_text:
        return lambda subject: text_of(subject.result)
    return _RESOLVERS[selector.root](path)


def _called(function: Callable[[ToolCall], Any], call: ToolCall) -> Any:
    value = function(call)
    if value is not None and not isinstance(value, Mapping):
        raise SelectorMismatch(
            f"a custom selector returns a dict, and this one returned {type(value).__name__}"
        )
    return value


def _reach(value: Any, path: tuple[str, ...], one: Callable[[Any, str], Any]) -> Any:
    if STAR in path:
        return spread(value, path, one)
    return walk(value, path) if one is step else walk_result(value, path)


def _principal(path: tuple[str, ...]) -> Resolver:
    if path[0] == "claims":
        return lambda subject: _reach(
            subject.call.principal and subject.call.principal.claims, path[1:], step
        )
    return lambda subject: getattr(subject.call.principal, path[0], None)


def _session(path: tuple[str, ...]) -> Resolver:
    if path[0] in TOOL_COUNTERS:
        return lambda subject: getattr(subject.session, path[0]).get(path[1], 0)
    return lambda subject: int(getattr(subject.session, path[0]))


_RESOLVERS: dict[str, Callable[[tuple[str, ...]], Resolver]] = {
    "environment": lambda _path: lambda subject: subject.call.environment,
    "tool": lambda _path: lambda subject: subject.call.tool_name,
    "args": lambda path: lambda subject: _reach(subject.call.args, path, step),
    "metadata": lambda path: lambda subject: _reach(subject.call.metadata, path, step),
    "env": lambda path: lambda _subject: environment_variable(path[0]),
    "result": lambda path: lambda subject: _reach(subject.result, path, result_step),
    "principal": _principal,
    "session": _session,
}
