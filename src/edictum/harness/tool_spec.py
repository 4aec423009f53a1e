"""ToolSpec: what the harness must know about a tool to run it within bounds.

What is not stated is taken for the worst case. ``idempotent`` means that repeating a call is
*safe*, ``cacheable`` that it is *pointless*: a call that polls a job is the first, not the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, get_args

from edictum.core.call import SideEffect, check_tool_name
from edictum.core.tool_entry import ENTRY_SETTINGS, UNKNOWN_TOOL, ToolEntry, tool_entry
from edictum.core.values import canonical, normalize
from edictum.errors import EdictumConfigError
from edictum.harness._functions import is_generator
from edictum.harness._typed_arguments import TypedFunction
from edictum.outcomes import TOOL_MESSAGE_MAX_CHARS

Isolation = Literal["inline", "async", "thread", "process"]
OnDuplicate = Literal["deny", "replay"]
READ_EFFECTS = (SideEffect.PURE, SideEffect.READ)
ANY_RESOURCE = "*"
EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class ResourceKey:
    """A resource that a call uses, exclusively or shared with others."""

    name: str
    exclusive: bool = True

    def conflicts_with(self, other: ResourceKey) -> bool:
        same = self.name == other.name or ANY_RESOURCE in (self.name, other.name)
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
    called directly, and no deadline can stop them. With a ``timeout_s``, their own or the policy's,
    they run in a thread instead.

    ``amounts`` are what a call uses, by name: numbers, selectors (``"args.amount"``) or functions
    of the call. ``actual`` are what its result says it used: selectors (``"result.cost"``) or
    functions of the result.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: EMPTY_SCHEMA)
    returns: Mapping[str, Any] | None = None
    function: Callable[..., Any] | None = field(default=None, repr=False)
    # None: not stated. What the policy says counts then, or else the worst case.
    side_effect: SideEffect = None  # type: ignore[assignment]  # never None once it is made
    idempotent: bool = False
    cacheable: bool | None = None  # None: if it is idempotent or pure
    cache_ttl_s: float | None = None
    on_duplicate: OnDuplicate | None = None  # None: as the turn says
    identity: tuple[str, ...] | None = None  # arguments that make two calls the same; None: all
    window_s: float | None = None  # the same call runs once within it, even after a restart
    timeout_s: float | None = None
    min_useful_s: float = 0.0
    retry_on_timeout: bool | None = None  # None: if repeating is safe, or it did not start
    retry_on_failure: bool = True
    max_retries: int = 0
    non_retryable: tuple[type[BaseException], ...] = ()
    resource_keys: ResourceKeys | None = None
    isolation: Isolation | None = None  # None: as the guard says; a task or a thread
    max_output_chars: int = TOOL_MESSAGE_MAX_CHARS
    store_output: bool = True  # False: an output that is too large is cut, never stored
    coerce: bool | None = None  # None: unless it is irreversible
    verify: str | None = None  # the tool that finds out whether a lost call took effect
    token_parameter: str | None = None
    amounts: Mapping[str, Any] = field(default_factory=dict)
    actual: Mapping[str, Any] = field(default_factory=dict)
    typed: TypedFunction | None = field(default=None, repr=False)  # set by @tool
    open_world: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    # Derived once, because every call needs them.
    states_effect: bool = field(init=False, repr=False, compare=False)
    is_pure: bool = field(init=False, repr=False)
    is_read: bool = field(init=False, repr=False)  # it leaves the world as it is
    is_cacheable: bool = field(init=False, repr=False)
    is_simple: bool = field(init=False, repr=False)  # a read whose key is its arguments alone
    safe_to_repeat: bool = field(init=False, repr=False)
    argument_schema: Any = field(init=False, repr=False, compare=False, default=None)  # compiled

    def __post_init__(self) -> None:
        check_tool_name(self.name)
        given: SideEffect | None = self.side_effect
        effect = SideEffect.IRREVERSIBLE if given is None else _to_side_effect(self.name, given)
        pure, read = effect is SideEffect.PURE, effect in READ_EFFECTS
        cacheable = (self.idempotent or pure) if self.cacheable is None else self.cacheable
        derived = {
            "side_effect": effect,
            "states_effect": given is not None or self.window_s is not None,  # it changes something
            "is_pure": pure,
            "is_read": read,
            "is_cacheable": cacheable,
            "is_simple": read and self.identity is None and self.cache_ttl_s is None,
            "safe_to_repeat": read or self.idempotent,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        _check_settings(self)

    @property
    def body(self) -> Callable[..., Any] | None:
        """The function as a turn calls it: with JSON, converted to what its hints name."""
        typed = self.typed
        return typed.body if typed and typed.function is self.function else self.function

    @property
    def may_coerce(self) -> bool:
        if self.coerce is None:
            return self.side_effect is not SideEffect.IRREVERSIBLE
        return self.coerce

    def entry(self) -> ToolEntry:
        """Return the tool as a guard's policy describes it."""
        isolation, stated = self.isolation, _read_amounts(self)
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return ToolEntry(
            **settings,
            run_in="inline" if isolation == "async" else isolation,
            amounts=stated.amounts,
            actual=stated.actual,
            describes=self.states_effect or self.idempotent,
            states_effect=self.states_effect,
        )

    def identity_of(self, arguments: Any) -> Any:
        """Return what makes two calls the same call."""
        if self.identity is None or not isinstance(arguments, Mapping):
            return arguments
        return {name: arguments.get(name) for name in self.identity}

    def keys_for(self, arguments: Any) -> tuple[ResourceKey, ...]:
        """Return the resources of one call; any resource if they cannot be determined."""
        keys = self.resource_keys
        if self.is_pure or keys is None:
            return self.widest_keys()
        try:
            named = keys(arguments) if callable(keys) else keys
            return tuple(self._to_key(key, arguments) for key in named)
        except Exception:  # a user-supplied function, or a name whose argument is missing
            return self.widest_keys()

    def widest_keys(self) -> tuple[ResourceKey, ...]:
        """Return the resources of a call whose arguments are not known."""
        return () if self.is_pure else (ResourceKey(ANY_RESOURCE, exclusive=not self.is_read),)

    def _to_key(self, key: str | ResourceKey, arguments: Mapping[str, Any]) -> ResourceKey:
        if isinstance(key, ResourceKey):
            return key
        name = _PLACEHOLDER.sub(lambda found: _to_resource_name(arguments[found[1]]), key)
        return ResourceKey(name, exclusive=not self.is_read)

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
        """Call the function itself, ungoverned: for tests and for code that is not a model."""
        if self.function is None:
            message = f"The tool {self.name!r} has no function."
            raise EdictumConfigError(message, hint="Give it one with function=...")
        return self.function(*args, **kwargs)


# of a ToolEntry that a ToolSpec has as they are
_SETTINGS = (ENTRY_SETTINGS.keys() & ToolSpec.__dataclass_fields__.keys()) - {"amounts", "actual"}


def _to_resource_name(value: Any) -> str:
    """Return one text for equal values. 1 and 1.0 are one account, and so is "1", to be safe."""
    if isinstance(value, str):
        return normalize(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if value is None or isinstance(value, (int, float)) else canonical(value)


def _to_side_effect(name: str, value: Any) -> SideEffect:
    try:
        return SideEffect(value)
    except ValueError:
        choices = ", ".join(effect.value for effect in SideEffect)
        message = f"tool {name!r}: side_effect is {value!r}."
        raise EdictumConfigError(message, hint=f"Use one of: {choices}.") from None


# --- Rules for settings ---------------------------------------------------------------------------


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _is_one_of(*options: Any) -> Callable[[Any], bool]:
    return lambda value: value in options


def _is_at_least(minimum: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= minimum


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_list_of_texts(value: Any) -> bool:
    kinds = (list, tuple, set, frozenset)
    return isinstance(value, kinds) and all(isinstance(each, str) for each in value)


# settings, what their values must be, and what to write instead
_VALUE_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("returns", _is_a(Mapping, NoneType), "Pass a JSON Schema, or None."),
    ("parameters", _is_a(Mapping), "Pass a JSON Schema of type object."),
    ("function", lambda value: value is None or callable(value), "Pass a function."),
    ("isolation", _is_one_of(None, *get_args(Isolation)), f"Use one of {get_args(Isolation)}."),
    ("on_duplicate", _is_one_of(None, *get_args(OnDuplicate)), "Use 'deny' or 'replay'."),
    ("idempotent retry_on_failure store_output open_world", _is_a(bool), "Use True or False."),
    ("cacheable retry_on_timeout coerce", _is_a(bool, NoneType), "Use True, False or None."),
    (
        "timeout_s window_s cache_ttl_s",
        lambda value: value is None or (_is_seconds(value) and value > 0),
        "Use seconds, more than 0, or None.",
    ),
    ("min_useful_s", _is_seconds, "Use seconds, 0 or more."),
    ("max_retries", _is_at_least(0), "Use a whole number of 0 or more."),
    ("max_output_chars", _is_at_least(1), "Use a number of characters."),
    (
        "identity resource_keys",
        lambda value: not isinstance(value, str),
        "Write {name}=[{value!r}].",
    ),
    (
        "identity",
        lambda value: value is None or _is_list_of_texts(value),
        "Pass the names of arguments.",
    ),
)
_SPEC_RULES: tuple[tuple[str, Callable[[ToolSpec], bool], str], ...] = (
    (
        "max_retries",
        lambda spec: spec.max_retries == 0 or spec.safe_to_repeat,
        "Only reads and idempotent tools are tried again.",
    ),
    (
        "token_parameter",
        lambda spec: spec.token_parameter not in (spec.parameters.get("properties") or ()),
        "It gets the deadline; a model does not, so leave it out of parameters.",
    ),
    (
        "token_parameter",
        lambda spec: spec.token_parameter is None or spec.isolation != "inline",
        "A tool that is called inline has no deadline; use 'async' or 'thread'.",
    ),
    (
        "window_s",
        lambda spec: spec.window_s is None or not spec.is_read,
        "A window is for tools that change something.",
    ),
)


def _check_settings(spec: ToolSpec) -> None:
    for names, is_right, hint in _VALUE_RULES:
        for name in names.split():
            if not is_right(value := getattr(spec, name)):
                raise _wrong_setting(spec, name, hint.format(name=name, value=value))
    for name, holds, hint in _SPEC_RULES:
        if not holds(spec):
            raise _wrong_setting(spec, name, hint)
    if spec.function is not None and is_generator(spec.function):
        message = f"tool {spec.name!r}: its function is a generator. Calling it runs nothing of it."
        raise EdictumConfigError(message, hint="Return a list instead of yielding: 'return [...]'.")
    _check_identity(spec)
    _read_amounts(spec)


def _read_amounts(spec: ToolSpec) -> ToolEntry:
    """Return an entry with the tool's amounts; raise for values that cannot be amounts."""
    if not spec.amounts and not spec.actual:
        return UNKNOWN_TOOL
    from edictum.contracts._amounts import read_selectors  # here: few tools need it

    given = {"amounts": spec.amounts, "actual": spec.actual}
    return tool_entry(spec.name, read_selectors(f"tool {spec.name!r}", given))


def _wrong_setting(spec: ToolSpec, name: str, hint: str) -> EdictumConfigError:
    return EdictumConfigError(f"tool {spec.name!r}: {name} is {getattr(spec, name)!r}.", hint=hint)


def _check_identity(spec: ToolSpec) -> None:
    """Refuse a name that is not an argument: all calls would be the same call."""
    schema = spec.parameters
    properties = schema.get("properties")
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if not closed or not isinstance(properties, Mapping):
        return
    for name in spec.identity or ():
        if name not in properties:
            close = get_close_matches(name, properties, n=1)
            names = f"Its arguments are: {', '.join(properties) or 'none'}."
            raise EdictumConfigError(
                f"tool {spec.name!r}: identity names {name!r}, which is not one of its arguments.",
                hint=f"Did you mean {close[0]!r}?" if close else names,
            )


# --- MCP ------------------------------------------------------------------------------------------


def spec_from_mcp(
    tool: Any, function: Callable[..., Any] | None = None, **settings: Any
) -> ToolSpec:
    """Make a ToolSpec from an MCP tool: an object or a dict with name, description, inputSchema,
    outputSchema and annotations.

    Missing hints are the worst case, as MCP says. Do not rely on the hints of a server that you do
    not trust: state what you know yourself with ``settings``.
    """
    known = {
        "name": _get(tool, "name"),
        "description": _get(tool, "description") or "",
        "parameters": _get(tool, "inputSchema", "input_schema") or EMPTY_SCHEMA,
        "returns": _get(tool, "outputSchema", "output_schema"),
        "function": function,
        **_read_annotations(_get(tool, "annotations")),
    }
    return ToolSpec(**{**known, **settings})


def _read_annotations(annotations: Any) -> dict[str, Any]:
    read_only = _get(annotations, "readOnlyHint") is True
    destructive = _get(annotations, "destructiveHint")
    effect = SideEffect.READ if read_only else None  # None: not stated
    if not read_only and destructive is not None:
        effect = SideEffect.IRREVERSIBLE if destructive else SideEffect.WRITE
    return {
        "side_effect": effect,
        # MCP defines this hint only for tools that are not read-only
        "idempotent": not read_only and _get(annotations, "idempotentHint") is True,
        "open_world": _get(annotations, "openWorldHint") is not False,
    }


def _get(source: Any, *names: str) -> Any:
    """Return the first of these that a dict has as a key, or an object as an attribute."""
    for name in names:
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if value is not None:
            return value
    return None
