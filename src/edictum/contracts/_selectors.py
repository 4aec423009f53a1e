"""Selectors: which value of a call a condition reads.

A selector is a root and a path: ``args.items[*].path``, ``principal.claims."team.name"``,
``result.rows.0``. ``None`` and absent are the same, *missing*. ``[*]`` stands for any element of a
list: a condition holds when it holds for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from inspect import isawaitable, iscoroutinefunction
from math import isfinite
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from edictum._logs import POLICY_WARNING, log
from edictum.contracts._problems import join_words, suggest
from edictum.core.call import Principal, ToolCall, lookups_of
from edictum.core.library_values import NOT_OPENED, Table, open_value
from edictum.core.parameters import declare, fill_argument, is_default_unknown
from edictum.core.values import MAX_VALUE_DEPTH, to_searched_json
from edictum.errors import EdictumConfigError

STAR: Final = "[*]"
ANY_TEXT: Final = ".*"  # the last step of ``args.*``: every text below
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PRINCIPAL_FIELDS = tuple(name for name in Principal.__slots__ if name != "claims")
COUNTERS = ("attempts", "executions", "successes", "failures", "consecutive_failures", "in_flight")
TOOL_COUNTERS = ("per_tool", "successes_per_tool")
_SEGMENT = re.compile(
    r"""\.(?:"([^"]+)"|'([^']+)'|([^.\[\]"']+))|\[(?:(\d+)|(\*)|"([^"]+)"|'([^']+)')\]"""
)
_ROOT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LISTS = (list, tuple, set, frozenset)

MAX_WARNED = 1_000  # tools and arguments that are warned about in a process
_WARNED: set[tuple[str, str]] = set()

CustomSelectors = Mapping[str, Callable[[ToolCall], Any]]
Steps = tuple[str, ...]


class SelectorError(ValueError):
    """A selector that can never mean anything; ``hint`` says what to write."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnknownArgument(ValueError):
    """An argument was left out, its default is not known, and the contract is strict."""

    is_for_model = True


class SelectorMismatch(TypeError):
    """The value is not what the selector expects, such as ``[*]`` on what is not a list."""

    is_for_model = True


@dataclass(frozen=True, slots=True)
class Selector:
    """``text`` as it was written, its root, and the steps behind the root.

    An argument that was left out is its default. ``as_sent``: it is missing. ``strict``: if its
    default is not known, UnknownArgument is raised.
    """

    text: str
    root: str
    path: Steps = ()
    as_sent: bool = False
    strict: bool = False

    @property
    def wild(self) -> bool:
        """Whether it stands for several values, of which a condition needs one."""
        return STAR in self.path or self.any_text

    @property
    def steps(self) -> Steps:
        """The path without a last ``.*``, which is not a step to one place."""
        return (self.any_text and self.path[:-1]) or self.path

    @property
    def any_text(self) -> bool:
        return self.path[-1:] == (ANY_TEXT,)

    @property
    def of_result(self) -> bool:
        return self.root == "result"

    @property
    def whole_text(self) -> bool:
        """The result as text: ``output.text``, ``result.text``."""
        quoted = '"' in self.text or "'" in self.text
        return self.root == "result" and self.path == ("text",) and not quoted


def parse_selector(
    text: str, custom: Mapping[str, Any] | None = None, timezone: str = "UTC"
) -> Selector:
    """Return the selector that a text stands for; raise SelectorError when there is none."""
    found = _ROOT.match(text)
    root = found.group() if found else text
    path = _parse_path(text, len(root))
    if custom and root in custom:
        _require_path(text, path)
        return Selector(text, root, path)
    selector = _parse_builtin(text, root, path, tuple(custom or ()))
    return Selector(text, root, (*path, timezone)) if root == "time" else selector


@lru_cache(maxsize=4_096)
def _parse_builtin(text: str, root: str, path: Steps, custom: tuple[str, ...]) -> Selector:
    check = _CHECKS.get(root)
    if check is None:
        known = [*ROOTS, *custom]
        # Suggest the whole selector when only its root is misspelt.
        rest = text[len(root) :]
        hint = suggest(root, known).replace("'?", f"{rest}'?").replace("'tool'?", "'tool.name'?")
        message = f"unknown selector '{text}'"
        raise SelectorError(message, f"{hint}A selector starts with one of: {join_words(known)}.")
    check(text, path)
    return Selector(text, "result" if root == "output" else root, path)


@lru_cache(maxsize=4_096)
def _parse_path(text: str, at: int) -> Steps:
    steps: list[str] = []
    while at < len(text):
        found = _SEGMENT.match(text, at)
        if found is None:
            message = f"'{text}' cannot be read from character {at + 1} on"
            raise SelectorError(message, 'Write steps as .name, ."quoted.name", [0] or [*].')
        at = found.end()
        if found.group(3) == "*" and at == len(text):
            steps.append(ANY_TEXT)
            break
        _check_step(text, found.group(3))
        star = found.group(5)
        steps.append(STAR if star else next(group for group in found.groups() if group is not None))
    return tuple(steps)


def _check_step(text: str, name: str | None) -> None:
    """Refuse an unquoted name that was probably not meant as a key."""
    if name is None:
        return
    if "*" in name:
        hint = 'Write [*] for the elements of a list, .* at the end for any text below, or ."*".'
        raise SelectorError(f"'{text}' has a '*' among its names", hint)
    if re.fullmatch(r"-\d+", name):
        hint = f'Elements are counted from the start: [0]; a key of this name is ."{name}".'
        raise SelectorError(f"'{text}' counts from the end", hint)
    if name != name.strip():
        hint = f'Remove it, or write ."{name}" for a key of this name.'
        raise SelectorError(f"'{text}' has a space beside a name", hint)


def _require_path(text: str, path: Steps) -> None:
    if not path:
        raise SelectorError(f"'{text}' names no field", f"Write for example {text}.name.")


def _refuse_path(text: str, path: Steps) -> None:
    if path:
        hint = f"Write just '{text.split('.')[0].split('[')[0]}'."
        raise SelectorError(f"'{text}' has no fields", hint)


def _check_tool(text: str, path: Steps) -> None:
    if path != ("name",):
        raise SelectorError(f"unknown selector '{text}'", "Write 'tool.name'.")


def _check_env(text: str, path: Steps) -> None:
    if len(path) != 1 or path[0] == STAR:
        hint = "Write for example env.DEPLOY_TARGET."
        raise SelectorError(f"'{text}' names no environment variable", hint)


def _check_principal(text: str, path: Steps) -> None:
    _require_path(text, path)
    name, known = path[0], [*PRINCIPAL_FIELDS, "claims"]
    if path == ("claims",):
        raise SelectorError(f"'{text}' names no claim", "Write for example principal.claims.team.")
    if name not in known:
        hint = f"{suggest(name, known)}Known fields: {join_words(known)}."
        raise SelectorError(f"a principal has no field '{name}'", hint)
    if len(path) > 1 and name != "claims":
        raise SelectorError(f"'principal.{name}' has no fields", f"Write just 'principal.{name}'.")


def _check_session(text: str, path: Steps) -> None:
    _require_path(text, path)
    known = [*COUNTERS, *TOOL_COUNTERS]
    if path[0] not in known or (path[0] in COUNTERS and len(path) > 1):
        hint = f"{suggest(path[0], known)}Known counters: {join_words(known)}."
        raise SelectorError(f"a session has no counter '{'.'.join(path)}'", hint)
    if path[0] in TOOL_COUNTERS and (len(path) != 2 or path[1] == STAR):
        hint = f"Write for example session.{path[0]}.read_file."
        raise SelectorError(f"'{text}' names no tool", hint)


def _check_result(text: str, path: Steps) -> None:
    if path[-1:] == (ANY_TEXT,):
        hint = "Write output.text: it has every text of a result."
        raise SelectorError(f"'{text}' is not available for results", hint)


def _check_time(text: str, path: Steps) -> None:
    _require_path(text, path)
    if len(path) > 1 or path[0] not in _TIME_FIELDS:
        hint = f"{suggest(path[0], _TIME_FIELDS)}Known fields: {join_words(_TIME_FIELDS)}."
        raise SelectorError(f"the time has no field '{'.'.join(path)}'", hint)


_TIME_FIELDS: dict[str, Callable[[datetime], Any]] = {
    "of_day": lambda now: now.strftime("%H:%M"),
    "hour": lambda now: now.hour,
    "weekday": lambda now: WEEKDAYS[now.weekday()],
    "date": lambda now: now.date().isoformat(),
}
_CHECKS: dict[str, Callable[[str, Steps], None]] = {
    "environment": _refuse_path,
    "tool": _check_tool,
    "args": lambda _text, _path: None,  # any path, even none
    "principal": _check_principal,
    **dict.fromkeys(("output", "result"), _check_result),  # any path, even none
    "env": _check_env,
    "metadata": _require_path,
    "session": _check_session,
    "time": _check_time,
}
ROOTS = tuple(_CHECKS)


def check_custom_selectors(custom: Mapping[str, Any] | None) -> CustomSelectors:
    """Return a guard's custom selectors, or raise an error that says what is wrong with them."""
    wanted = "a function of the call that returns a dict, ordinary or async"
    check_custom("selector", custom, set(ROOTS), _ROOT.fullmatch, wanted)
    return dict(custom or {})


def refuse_asynchronous(selector: Selector, custom: Mapping[str, Any] | None) -> None:
    """Raise SelectorError for an asynchronous selector in a place where nothing can be awaited."""
    if iscoroutinefunction((custom or {}).get(selector.root)):
        message = f"'{selector.text}' is asynchronous, and limits do not wait"
        raise SelectorError(message, "Use a selector that is an ordinary function.")


def check_custom(
    kind: str,
    custom: Mapping[str, Any] | None,
    reserved: set[str],
    is_name: Callable[[str], Any],
    wanted: str,
) -> None:
    """Raise EdictumConfigError unless all names are usable and all values callable."""
    if clash := sorted(set(custom or ()) & reserved):
        message = f"Custom {kind} names clash with built-in {kind}s: {clash}."
        raise EdictumConfigError(message, hint="Choose other names.")
    for name, function in (custom or {}).items():
        if not isinstance(name, str) or not is_name(name):
            message = f"Custom {kind} {name!r} is not a name."
            raise EdictumConfigError(message, hint="Use letters, digits, '_' and '-'.")
        if not callable(function):
            hint = f"Pass {wanted}."
            raise EdictumConfigError(f"Custom {kind} '{name}' is not callable.", hint=hint)


# --- Values ---------------------------------------------------------------------------------------


def step(value: Any, key: str) -> Any:
    """Take one step into a dict or a list; return None when there is nothing."""
    if isinstance(value, Mapping):
        found = value.get(key)
        return value.get(int(key)) if found is None and key.isdecimal() else found
    if isinstance(value, (list, tuple)) and key.isdecimal():
        return value[int(key)] if int(key) < len(value) else None
    return None


_NOT_OPENED = (str, bytes, bytearray, int, float, complex, bool, type(None), set, frozenset)


def result_step(value: Any, key: str) -> Any:
    """Take one step as ``step`` does, and into objects: tools return responses, dataclasses."""
    if isinstance(value, (Mapping, list, tuple)):
        found = step(value, key)
        if found is not None or isinstance(value, (Mapping, list)):
            return found
    if isinstance(value, _NOT_OPENED):
        return None
    opened = open_value(value)
    if opened is not NOT_OPENED:
        found = step(opened.by_name() if type(opened) is Table else opened, key)
        if found is not None:
            return found
    if key.startswith("_") or not key.isidentifier():
        return None
    found = getattr(value, key, None)
    return None if callable(found) else found


def _make_result_finder(path: Steps) -> Resolver:
    """Return a function that finds a path in a result, with arrays as lists and numpy's numbers as
    numbers.
    """
    if STAR in path or ANY_TEXT in path:
        return lambda subject: [*map(_open_array, _find(subject.result, path, result_step))]
    return lambda subject: _open_array(_find(subject.result, path, result_step))


def _open_array(value: Any) -> Any:
    if type(value) in _PRINTED_WHOLE:
        return value
    opened = open_value(value)
    return value if opened is NOT_OPENED or type(opened) is Table else opened


def walk(value: Any, path: Steps, into: Callable[[Any, str], Any] = step) -> Any:
    """Return the value at the end of a path, or None."""
    for key in path:
        value = into(value, key)
        if value is None:
            return None
    return value


def expand_wildcards(value: Any, path: Steps, into: Callable[[Any, str], Any]) -> list[Any]:
    """Return all values that a path with ``[*]`` reaches; ``[None]`` when it reaches nothing."""
    values = [value]
    for key in path:
        values = [
            found
            for item in values
            for found in (_spread(item, key) if key in (STAR, ANY_TEXT) else (into(item, key),))
        ]
    return values or [None]


def _spread(value: Any, key: str) -> Sequence[Any]:
    return _elements(value) if key == STAR else texts(value)


def _elements(value: Any) -> list[Any]:
    if value is None:
        return [None]
    value = _open_array(value)
    if not isinstance(value, _LISTS):
        message = f"[*] stands for the elements of a list, and this is {type(value).__name__}"
        raise SelectorMismatch(message)
    return list(value)


JOINED_TEXTS = 1_000  # that are looked at together


def text_of(result: Any) -> str | None:
    """Return a result as text for patterns, with what printing would escape or leave out."""
    if result is None or isinstance(result, str):
        return result
    if isinstance(result, (bytes, bytearray)):
        return result.decode("utf-8", "replace")
    parts = [str(result)]
    if _prints_itself(result):
        result = to_searched_json(result)
        parts.append(str(result))
    parts += _find_escapes(texts(result))
    return "\n".join(parts)


def _find_escapes(found: list[str]) -> list[str]:
    """Return the texts that are escaped inside a list but not when printed alone."""
    escaped: list[str] = []
    for start in range(0, len(found), JOINED_TEXTS):
        part = found[start : start + JOINED_TEXTS]
        joined = "".join(part)
        if not joined.isprintable() or "\\" in joined or "'" in joined:
            escaped += [text for text in part if repr(text)[1:-1] != text]
    return escaped


_PRINTED_WHOLE = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None)})


def _prints_itself(value: Any, depth: int = 0) -> bool:
    """Return whether something inside has its own ``repr``, which may hide a field."""
    kind = type(value)
    if kind in _PRINTED_WHOLE:
        return False
    if depth > MAX_VALUE_DEPTH:
        return True
    if kind is dict:
        return any(_prints_itself(item, depth + 1) for pair in value.items() for item in pair)
    return kind not in _LISTS or any(_prints_itself(item, depth + 1) for item in value)


_NUMBERS = frozenset({int, float, bool, type(None)})


def texts(value: Any, depth: int = 0) -> list[str]:
    """Return every text inside a structure, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, (bytes, bytearray)):
        return [value.decode("utf-8", "replace")]
    items = () if depth > MAX_VALUE_DEPTH else _inner_values(value)
    return [
        text
        for item in items
        if type(item) not in _NUMBERS
        for text in ((item,) if type(item) is str else texts(item, depth + 1))
    ]


def _inner_values(value: Any) -> Iterable[Any]:
    """Return the keys and values of a mapping, or the elements of a list."""
    if isinstance(value, Mapping):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, _LISTS):
        return list(value)
    opened = to_searched_json(value)  # a dataclass, a model, a frame
    return [opened] if isinstance(opened, (dict, list)) else []


def environment_variable(name: str) -> Any:
    """Return a process variable, as a flag or a number when it looks like one."""
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
    """The call, result or session that conditions are asked about."""

    call: ToolCall
    result: Any = None
    session: Any = None
    violation: str | None = None  # what a sandbox found out of bounds


Resolver = Callable[[Subject], Any]


def resolver(selector: Selector, custom: CustomSelectors) -> Resolver:
    """Return a function from the subject to the value; with ``[*]``, to the list of values."""
    path = selector.path
    if selector.root == "args":
        return lambda subject: find_argument(subject.call, selector)
    if selector.root in custom:
        function = custom[selector.root]
        return lambda subject: _find(look_up(function, subject.call), path, step)
    if selector.whole_text:
        return lambda subject: text_of(subject.result)
    return _RESOLVERS[selector.root](path)


class Pending(Exception):
    """A custom selector must be awaited: ``settle`` does so and keeps its value."""

    def __init__(self, known: dict[int, Any], key: int, awaitable: Awaitable[Any]) -> None:
        super().__init__("the selector is asynchronous and was not awaited")
        self._known, self._key, self._awaitable = known, key, awaitable

    async def settle(self) -> None:
        if self._known.get(self._key) is not self:
            return  # another contract has awaited it
        try:
            self._known[self._key] = await self._awaitable
        except Exception as exc:
            self._known[self._key] = _Raised(exc)

    def drop(self) -> None:
        """Give up a value that is not needed."""
        getattr(self._awaitable, "close", lambda: None)()


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a custom selector raised; it is raised again, and the selector is not called again."""

    error: Exception


def look_up(function: Callable[[ToolCall], Any], call: ToolCall) -> Any:
    """Return the value of a custom selector for a call; the selector is called once per call.

    Raises what the selector raised, and Pending while it must still be awaited.
    """
    known, key = lookups_of(call), id(function)
    if key not in known:
        known[key] = _ask_selector(function, call, known)
    value = known[key]
    if isinstance(value, Pending):
        raise value
    if isinstance(value, _Raised):
        raise value.error
    if value is not None and not isinstance(value, Mapping):
        message = f"a custom selector returns a dict, and this one returned {type(value).__name__}"
        raise SelectorMismatch(message)
    return value


def _ask_selector(
    function: Callable[[ToolCall], Any], call: ToolCall, known: dict[int, Any]
) -> Any:
    try:
        found = function(call)
    except Exception as exc:
        return _Raised(exc)
    return Pending(known, id(function), found) if isawaitable(found) else found


def find_argument(call: ToolCall, selector: Selector) -> Any:
    """Return an argument that was sent, or its default if that is known; see ``resolver``."""
    path = selector.path
    if path == (ANY_TEXT,):  # without the names of the arguments, which are the tool's
        return _find(list(call.effective_args.values()), path, step)
    found = _find(call.args, path, step)
    if selector.as_sent or not _lacks_something(found, selector):
        return found
    filled = fill_argument(call.args, selector.steps, call.parameters)
    found = _find(filled, path, step)
    if _lacks_something(found, selector):
        _report_missing_default(call, selector, filled)
    return found


def _lacks_something(found: Any, selector: Selector) -> bool:
    return found is None or (selector.wild and any(item is None for item in found))


def _report_missing_default(call: ToolCall, selector: Selector, filled: Mapping[str, Any]) -> None:
    """Raise for a strict selector if a missing argument has an unknown default; otherwise warn
    once.
    """
    if not selector.strict and (
        call.parameters is None or (call.tool_name, selector.text) in _WARNED
    ):
        return
    if not is_default_unknown(filled, selector.path, call.parameters):
        return
    if selector.strict:
        raise UnknownArgument(refuse_unknown_argument(call, selector.text))
    if note_warning(call.tool_name, selector):
        log(
            POLICY_WARNING,
            "%s: a contract reads %s, which a call left out, and its default is not known. State"
            " the default in the tool's signature or schema, or refuse such calls with"
            " 'missing_args: deny'.",
            call.tool_name,
            selector.text,
        )


def has_unknown_default(call: ToolCall, selector: Selector) -> bool:
    """Return whether a selector finds nothing because a default is unknown."""
    if selector.root != "args" or selector.as_sent:
        return False
    filled = fill_argument(call.args, selector.steps, call.parameters)
    return is_default_unknown(filled, selector.path, call.parameters)


def note_warning(tool_name: str, selector: Selector) -> bool:
    """Note that an unknown default is warned about; return whether it is the first time."""
    about = (tool_name, selector.text)
    if about in _WARNED or len(_WARNED) >= MAX_WARNED:
        return False
    _WARNED.add(about)
    return True


def find_unknown_argument(call: ToolCall) -> str | None:
    """Return an argument that may have been left out and has no known default; None if there is
    none.
    """
    declared = declare(call.parameters)
    filled = declared.fill(call.args)
    names = (name for name in declared.names() if declared.is_unknown(filled, (name,)))
    found = next(names, None)
    if found is None and not declared.is_closed():
        return "args"
    return None if found is None else f"args.{found}"


def refuse_unknown_argument(call: ToolCall, what: str) -> str:
    """Return the message for a call that is denied because an argument that it left out cannot be
    judged.
    """
    if what == "args":
        problem = f"The parameters of {call.tool_name} are not known"
        return f"{problem}, so what was not sent cannot be judged."
    return (
        f"{what} was not sent, and its default is not known. Call {call.tool_name} again and state"
        " it."
    )


def _find(value: Any, path: Steps, into: Callable[[Any, str], Any]) -> Any:
    if STAR in path or path[-1:] == (ANY_TEXT,):
        return expand_wildcards(value, path, into)
    return walk(value, path, into)


def _principal(path: Steps) -> Resolver:
    if path[0] == "claims":
        return lambda subject: _find(
            subject.call.principal and subject.call.principal.claims, path[1:], step
        )
    return lambda subject: getattr(subject.call.principal, path[0], None)


def _session(path: Steps) -> Resolver:
    if path[0] in TOOL_COUNTERS:
        return lambda subject: getattr(subject.session, path[0]).get(path[1], 0)
    return lambda subject: int(getattr(subject.session, path[0]))


def _time(path: Steps) -> Resolver:
    read, zone = _TIME_FIELDS[path[0]], find_timezone(path[1])
    return lambda subject: read(datetime.fromtimestamp(subject.call.started_at, zone))


@lru_cache(maxsize=64)
def find_timezone(name: str) -> tzinfo:
    """Return a time zone by its name; raise ValueError when there is none."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (OSError, ValueError, ZoneInfoNotFoundError) as exc:
        raise ValueError(f"'{name}' is not a known time zone") from exc


_RESOLVERS: dict[str, Callable[[Steps], Resolver]] = {
    "environment": lambda _path: lambda subject: subject.call.environment,
    "tool": lambda _path: lambda subject: subject.call.tool_name,
    "metadata": lambda path: lambda subject: _find(subject.call.metadata, path, step),
    "env": lambda path: lambda _subject: environment_variable(path[0]),
    "result": _make_result_finder,
    "principal": _principal,
    "session": _session,
    "time": _time,
}
