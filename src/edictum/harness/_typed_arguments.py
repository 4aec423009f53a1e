"""Arguments as the types that a tool's hints name: a date for "2024-05-01", a model for an object.

What a model sends is JSON, and JSON is what contracts, approvals, the audit and replay control see.
It is read by pydantic just before the body runs; what cannot be read so has been refused by the
validation gate. Parameters of plain JSON types are left alone, and a tool that has no others pays
nothing for those of others.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from functools import wraps
from inspect import iscoroutinefunction
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NewType,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from edictum.core.jsonable import dumps, show
from edictum.core.redaction import shorten
from edictum.execution.failures import NotStarted

LISTS = (list, Sequence, MutableSequence, Collection, Iterable)
DICTS = (dict, Mapping, MutableMapping)
PLAIN = (str, int, float, bool, NoneType, Any, object, *LISTS, *DICTS)
BOUNDS = frozenset({"Gt", "Ge", "Lt", "Le", "Interval", "MultipleOf", "MinLen", "MaxLen", "Len"})
MAX_PROBLEMS = 8

Problem = tuple[str, str, str]  # where, what is wrong, and which kind of mistake it is


class TypedFunction:
    """A function, and how its arguments are read. ``body`` is called with JSON, and calls the
    function with what its hints say.
    """

    __slots__ = ("_readers", "body", "function")

    def __init__(self, function: Callable[..., Any], readers: Mapping[str, Any]) -> None:
        self.function = function
        self._readers = readers  # a pydantic TypeAdapter for each parameter that is no plain JSON
        self.body = _body(self)
        self.body.typed = self  # type: ignore[attr-defined]  # so that whoever sends it elsewhere knows what it is made of

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        try:
            self._read(arguments)
        except Exception:  # also what a user's own validator raises
            return False
        return True

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function wants them."""
        try:
            return {**arguments, **self._read(arguments)}
        except (
            Exception
        ) as exc:  # a validator of the user's own has let them pass, or has changed its mind
            problems = "; ".join(f"{where}: {said}" for where, said, _ in self.problems(arguments))
            raise NotStarted(
                f"The arguments cannot be read as the tool's types: {problems or show(exc)}"
            ) from exc

    def _read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: _value(reader, arguments[name])
            for name, reader in self._readers.items()
            if name in arguments
        }

    def problems(self, arguments: Mapping[str, Any]) -> list[Problem]:
        """What keeps the arguments from being read."""
        found: list[Problem] = []
        for name, reader in self._readers.items():
            if name not in arguments:
                continue
            try:
                _value(reader, arguments[name])
            except Exception as exc:
                found += _problems_of(exc, name)
        return found[:MAX_PROBLEMS]


def _value(reader: Any, value: Any) -> Any:
    """As JSON text: there a date is a text and a tuple a list, also for a model that is strict
    about its types.
    """
    return reader.validate_json(dumps(value))


def _body(typed: TypedFunction) -> Callable[..., Any]:
    """Known by the name of the function, so that another process finds it where the tool is."""
    function, read = typed.function, typed.read
    if iscoroutinefunction(function):

        @wraps(function, updated=())
        async def run_async(**arguments: Any) -> Any:
            return await function(**read(arguments))

        return run_async

    @wraps(function, updated=())
    def run(**arguments: Any) -> Any:
        return function(**read(arguments))

    return run


def _problems_of(exc: Exception, name: str) -> list[Problem]:
    """Each problem that pydantic has found; any other exception comes from a validator of the
    user's, and is one.
    """
    try:
        errors = exc.errors(include_url=False, include_context=False)  # type: ignore[attr-defined]
    except Exception:
        return [(name, f"{type(exc).__name__}: {shorten(_text(exc), 300)}", type(exc).__name__)]
    return [
        (".".join(map(str, (name, *error["loc"]))), _said(error), error["type"]) for error in errors
    ]


def _said(error: Mapping[str, Any]) -> str:
    received = (
        "" if error["type"] == "missing" else f", received {shorten(show(error['input']), 60)}"
    )
    return shorten(str(error["msg"]), 300).rstrip(".") + received


def _text(exc: Exception) -> str:
    try:
        return str(exc)
    except Exception:
        return "it has no text"


# --- Which hints need reading ---------------------------------------------------------------------


def readable(hint: Any) -> Any:
    """The hint by which a parameter is read. An Iterable would be read only while the body goes
    through it; a list is one as well.
    """
    return list[get_args(hint)] if get_origin(hint) is Iterable else hint  # type: ignore[misc]


def is_plain(hint: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether JSON that fits the schema of a hint is what the hint promises, as it stands."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is None:
        return _is_plain_name(hint, within)
    if origin is Annotated:
        return is_plain(inner[0], within) and all(_is_bound(each) for each in inner[1:])
    if origin is Literal:
        return all(type(each) in (str, int, bool, NoneType) for each in inner)
    if origin in DICTS:
        return not inner or (inner[0] in (str, Any) and is_plain(inner[1], within))
    return origin in (Union, UnionType, *LISTS) and all(is_plain(each, within) for each in inner)


def _is_plain_name(hint: Any, within: tuple[Any, ...]) -> bool:
    if isinstance(hint, NewType):
        return is_plain(hint.__supertype__, within)
    if hasattr(hint, "__required_keys__"):  # a TypedDict
        return hint in within or all(is_plain(each, (*within, hint)) for each in fields_of(hint))
    return hint in PLAIN


def _is_bound(metadata: Any) -> bool:
    """Whether the schema says all that an annotation does. What is not known may change a value, or
    refuse it.
    """
    if type(metadata).__name__ == "FieldInfo":
        return all(_is_bound(each) for each in metadata.metadata)
    return isinstance(metadata, str) or (
        type(metadata).__module__ == "annotated_types" and type(metadata).__name__ in BOUNDS
    )


def fields_of(hint: Any) -> Iterator[Any]:
    """The types of what an object of this class holds; for a class whose hints cannot be read, one
    that JSON does not know.
    """
    try:
        hints = get_type_hints(hint, include_extras=True)
    except Exception:
        hints = {"": bytes}
    return (_unmarked(part) for part in hints.values() if get_origin(part) is not ClassVar)


def _unmarked(hint: Any) -> Any:
    """What Required[...] or NotRequired[...] is about."""
    return (
        get_args(hint)[0]
        if getattr(get_origin(hint), "_name", "") in ("Required", "NotRequired")
        else hint
    )
