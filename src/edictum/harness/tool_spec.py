"""ToolSpec: what the harness must know of a tool to run it within bounds. What is not said is taken
to be the worst.

Two ideas are kept apart: ``idempotent`` means that the call is *safe* to repeat, ``cacheable`` that
it is *pointless* to. A call that polls a job is the first and not the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from edictum.core.call import SideEffect, check_tool_name
from edictum.core.policy import ToolEntry
from edictum.errors import EdictumConfigError
from edictum.harness._functions import is_generator
from edictum.harness._schemas import fitting_types
from edictum.harness._typed_arguments import TypedFunction
from edictum.harness.canonical import canonical, normal
from edictum.outcomes import TOOL_MESSAGE_MAX_CHARS

Isolation = Literal["inline", "async", "thread", "process"]
OnDuplicate = Literal["deny", "replay"]
RUN_IN: dict[str, Any] = {
    "inline": "inline",
    "async": "inline",
    "thread": "thread",
    "process": "process",
}
READS = (SideEffect.PURE, SideEffect.READ)
ANYTHING = "*"
EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class ResourceKey:
    """A resource that a call uses, alone (``exclusive``) or beside others."""

    name: str
    exclusive: bool = True

    def conflicts_with(self, other: ResourceKey) -> bool:
        same = self.name == other.name or ANYTHING in (self.name, other.name)
        return same and (self.exclusive or other.exclusive)


ResourceKeys = (
    Sequence[str | ResourceKey] | Callable[[Mapping[str, Any]], Sequence[str | ResourceKey]]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool, its schema, and how it may be run.

    ``resource_keys`` are names (``"vault"``), names filled in from arguments (``"file:{path}"``),
    ``ResourceKey`` values, or a function of the arguments. Plain names are shared for reads and
    exclusive for writes. None means unknown: any resource.

    ``isolation``: "async" is a task, cancelled at the deadline; "thread" cannot be stopped and is
    left behind; "process" is killed; "inline" is for functions that surely return at once: they are
    called where they stand, and no deadline can stop them. With a ``timeout_s``, of their own or of
    the policy, they run in a thread after all.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: EMPTY_SCHEMA)
    returns: Mapping[str, Any] | None = None
    function: Callable[..., Any] | None = field(default=None, repr=False)
    side_effect: SideEffect = SideEffect.IRREVERSIBLE
    idempotent: bool = False
    cacheable: bool | None = None  # None: if it is idempotent or pure
    cache_ttl_s: float | None = None
    on_duplicate: OnDuplicate | None = None  # None: as the turn says
    identity: tuple[str, ...] | None = None  # the arguments that make two calls the same; None: all
    window_s: float | None = (
        None  # within it a call with the same identity runs once, also after a restart
    )
    timeout_s: float | None = None
    min_useful_s: float = 0.0
    retry_on_timeout: bool | None = (
        None  # None: if it is safe to repeat, or has certainly not begun
    )
    retry_on_failure: bool = True
    max_retries: int = 0
    non_retryable: tuple[type[BaseException], ...] = ()
    resource_keys: ResourceKeys | None = None
    isolation: Isolation | None = (
        None  # None: where the guard runs tools; coroutines as tasks, other functions in threads
    )
    max_output_chars: int = TOOL_MESSAGE_MAX_CHARS
    store_output: bool = True  # False: too large an output is cut, never stored
    coerce: bool | None = None  # None: unless it is irreversible
    verify: str | None = None  # the tool that tells whether a lost call of this one took effect
    token_parameter: str | None = None
    typed: TypedFunction | None = field(
        default=None, repr=False
    )  # how arguments become what the hints name; ``@tool`` works it out
    open_world: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    # What follows from the axes; every call asks, so it is worked out once.
    is_pure: bool = field(init=False, repr=False)
    is_read: bool = field(init=False, repr=False)  # it leaves the world as it is
    is_cacheable: bool = field(init=False, repr=False)
    is_simple: bool = field(
        init=False, repr=False
    )  # a read that is the same for the same arguments, until something is written
    safe_to_repeat: bool = field(init=False, repr=False)
    fitting: frozenset[type] = field(
        init=False, repr=False
    )  # types of results that fit what it returns, whatever is in them

    def __post_init__(self) -> None:
        check_tool_name(self.name)
        _check(
            self,
            "returns",
            self.returns is None or isinstance(self.returns, Mapping),
            "Pass a JSON Schema, or None.",
        )
        effect = _side_effect(self.name, self.side_effect)
        pure, read = effect is SideEffect.PURE, effect in READS
        cacheable = (self.idempotent or pure) if self.cacheable is None else self.cacheable
        simple = read and self.identity is None and self.cache_ttl_s is None
        for name, value in (
            ("side_effect", effect),
            ("is_pure", pure),
            ("is_read", read),
            ("is_cacheable", cacheable),
            ("is_simple", simple),
            ("safe_to_repeat", read or self.idempotent),
            ("fitting", fitting_types(self.returns)),
        ):
            object.__setattr__(self, name, value)
        _check(
            self,
            "isolation",
            self.isolation is None or self.isolation in RUN_IN,
            "Use 'async', 'thread', 'process' or 'inline'.",
        )
        _check(
            self,
            "parameters",
            isinstance(self.parameters, Mapping),
            "Pass a JSON Schema of type object.",
        )
        _check(
            self,
            "on_duplicate",
            self.on_duplicate in (None, "deny", "replay"),
            "Use 'deny' or 'replay'.",
        )
        _check(
            self, "function", self.function is None or callable(self.function), "Pass a function."
        )
        _check_runs(self)
        _check(
            self,
            "max_retries",
            type(self.max_retries) is int and self.max_retries >= 0,
            "Use a whole number of 0 or more.",
        )
        _check(
            self,
            "max_retries",
            self.max_retries == 0 or self.safe_to_repeat,
            "Only reads and idempotent tools are tried again.",
        )
        for name in ("timeout_s", "window_s", "cache_ttl_s"):
            value = getattr(self, name)
            _check(
                self,
                name,
                value is None or (isinstance(value, (int, float)) and value > 0),
                "Use seconds, more than 0, or None.",
            )
        _check(
            self,
            "min_useful_s",
            _is_number(self.min_useful_s) and self.min_useful_s >= 0,
            "Use seconds, 0 or more.",
        )
        for name in ("idempotent", "retry_on_failure", "store_output", "open_world"):
            _check(self, name, type(getattr(self, name)) is bool, "Use True or False.")
        for name in ("cacheable", "retry_on_timeout", "coerce"):
            _check(
                self,
                name,
                getattr(self, name) is None or type(getattr(self, name)) is bool,
                "Use True, False or None.",
            )
        _check_names(self)
        _check(
            self,
            "max_output_chars",
            type(self.max_output_chars) is int and self.max_output_chars > 0,
            "Use a number of characters.",
        )
        inline_token = self.isolation == "inline" and self.token_parameter is not None
        stated = self.token_parameter is not None and self.token_parameter in (
            self.parameters.get("properties") or ()
        )
        _check(
            self,
            "token_parameter",
            not stated,
            "It gets the deadline; a model does not, so leave it out of parameters.",
        )
        _check(
            self,
            "token_parameter",
            not inline_token,
            "A tool that is called inline has no deadline; use 'async' or 'thread'.",
        )
        _check(
            self,
            "window_s",
            self.window_s is None or not self.is_read,
            "A window is for tools that change something.",
        )

    @property
    def body(self) -> Callable[..., Any] | None:
        """The function as a turn calls it: with JSON, which is read as what its hints name."""
        return (
            self.typed.body
            if self.typed is not None and self.typed.function is self.function
            else self.function
        )

    @property
    def may_coerce(self) -> bool:
        return (
            self.side_effect is not SideEffect.IRREVERSIBLE if self.coerce is None else self.coerce
        )

    def entry(self) -> ToolEntry:
        """The same tool as a guard knows it."""
        return ToolEntry(
            side_effect=self.side_effect,
            idempotent=self.idempotent,
            timeout_s=self.timeout_s,
            run_in=None if self.isolation is None else RUN_IN[self.isolation],
            retry_on_timeout=self.retry_on_timeout,
            retry_on_failure=self.retry_on_failure,
            verify=self.verify,
        )

    def identity_of(self, arguments: Any) -> Any:
        """What makes two calls the same call."""
        if self.identity is None or not isinstance(arguments, Mapping):
            return arguments
        return {name: arguments.get(name) for name in self.identity}

    def keys_for(self, arguments: Any) -> tuple[ResourceKey, ...]:
        """The resources of one call. What cannot be told is any resource; a pure tool uses none."""
        if self.is_pure or self.resource_keys is None:
            return self.unknown_keys()
        try:
            keys = (
                self.resource_keys(arguments)
                if callable(self.resource_keys)
                else self.resource_keys
            )
            return tuple(self._key(key, arguments) for key in keys)
        except Exception:  # a function of the user, or a name whose argument is missing
            return self.unknown_keys()

    def unknown_keys(self) -> tuple[ResourceKey, ...]:
        """The resources of a call of which only the tool is known."""
        return () if self.is_pure else (ResourceKey(ANYTHING, exclusive=not self.is_read),)

    def _key(self, key: str | ResourceKey, arguments: Mapping[str, Any]) -> ResourceKey:
        if isinstance(key, ResourceKey):
            return key
        return ResourceKey(
            _PLACEHOLDER.sub(lambda found: _as_name(arguments[found[1]]), key),
            exclusive=not self.is_read,
        )

    # --- What a model is told ---------------------------------------------------------------------

    def to_openai_schema(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}

    def to_anthropic_schema(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": dict(self.parameters),
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, ungoverned: for tests and for code that is not a model."""
        if self.function is None:
            raise EdictumConfigError(
                f"The tool {self.name!r} has no function.", hint="Give it one with function=..."
            )
        return self.function(*args, **kwargs)


def _as_name(value: Any) -> str:
    """An argument in the name of a resource: one text for equal values. 1 and 1.0 are one account,
    and so is "1", to be careful.
    """
    if isinstance(value, str):
        return normal(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if value is None or isinstance(value, (int, float)) else canonical(value)


def _side_effect(name: str, value: Any) -> SideEffect:
    try:
        return SideEffect(value)
    except ValueError:
        choices = ", ".join(effect.value for effect in SideEffect)
        raise EdictumConfigError(
            f"tool {name!r}: side_effect is {value!r}.", hint=f"Use one of: {choices}."
        ) from None


def _check(spec: ToolSpec, name: str, holds: bool, hint: str) -> None:
    if not holds:
        raise EdictumConfigError(
            f"tool {spec.name!r}: {name} is {getattr(spec, name)!r}.", hint=hint
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_runs(spec: ToolSpec) -> None:
    if spec.function is not None and is_generator(spec.function):
        raise EdictumConfigError(
            f"tool {spec.name!r}: its function is a generator. To call it runs nothing of it.",
            hint="Return a list instead of yielding: 'return [...]'.",
        )


def _check_names(spec: ToolSpec) -> None:
    """A text is a list of letters, and a name that no argument has makes all calls the same
    call.
    """
    for name, meant in (("identity", spec.identity), ("resource_keys", spec.resource_keys)):
        _check(spec, name, not isinstance(meant, str), f"Write {name}=[{meant!r}].")
    _check(
        spec,
        "identity",
        spec.identity is None or _are_texts(spec.identity),
        "Pass the names of arguments.",
    )
    known = _closed_names(spec.parameters)
    for name in spec.identity or ():
        if known is not None and name not in known:
            close = get_close_matches(name, known, n=1)
            hint = (
                f"Did you mean {close[0]!r}?"
                if close
                else f"Its arguments are: {', '.join(known) or 'none'}."
            )
            raise EdictumConfigError(
                f"tool {spec.name!r}: identity names {name!r}, which is none of its arguments.",
                hint=hint,
            )


def _are_texts(names: Any) -> bool:
    return isinstance(names, (list, tuple, set, frozenset)) and all(
        isinstance(each, str) for each in names
    )


def _closed_names(schema: Mapping[str, Any]) -> list[str] | None:
    """The names of all arguments that there can be; None if the schema leaves that open, or says it
    in another way.
    """
    properties = schema.get("properties")
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return list(properties) if closed and isinstance(properties, Mapping) else None


def spec_from_mcp(
    tool: Any, function: Callable[..., Any] | None = None, **settings: Any
) -> ToolSpec:
    """A ToolSpec from an MCP tool: an object or a dict with name, description, inputSchema,
    outputSchema and annotations.

    Hints that are missing are the worst case, as MCP says. Hints of a server you do not trust are
    worth nothing: say what you know yourself with ``settings``.
    """
    known = {
        "name": _read(tool, "name"),
        "description": _read(tool, "description") or "",
        "parameters": _read(tool, "inputSchema", "input_schema") or EMPTY_SCHEMA,
        "returns": _read(tool, "outputSchema", "output_schema"),
        "function": function,
        **_from_annotations(_read(tool, "annotations")),
    }
    return ToolSpec(**{**known, **settings})


def _from_annotations(annotations: Any) -> dict[str, Any]:
    read_only = _read(annotations, "readOnlyHint") is True
    destructive = _read(annotations, "destructiveHint") is not False
    effect = (
        SideEffect.READ
        if read_only
        else SideEffect.IRREVERSIBLE
        if destructive
        else SideEffect.WRITE
    )
    return {
        "side_effect": effect,
        "idempotent": (
            not read_only and _read(annotations, "idempotentHint") is True
        ),  # MCP: it says nothing about reads
        "open_world": _read(annotations, "openWorldHint") is not False,
    }


def _read(source: Any, *names: str) -> Any:
    """The first of these that a dict has as a key, or an object as an attribute."""
    for name in names:
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if value is not None:
            return value
    return None
