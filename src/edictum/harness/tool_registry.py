"""ToolRegistry: the tools of a turn by name; and ``@tool``, which makes specs from functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pkgutil import resolve_name
from typing import Any, overload

from edictum.core._records import record, replace
from edictum.core.parameters import ReadLater, declare
from edictum.core.policy import Plan, Policy
from edictum.core.tool_entry import UNKNOWN_TOOL, ToolEntry, merge_entries
from edictum.errors import EdictumConfigError
from edictum.harness._functions import find_token_parameter, get_description, get_name
from edictum.harness._schemas import ResultCheck, make_result_check, make_schemas
from edictum.harness._typed_arguments import TypedFunction
from edictum.harness.arg_validator import ArgumentSchema, get_argument_schema
from edictum.harness.tool_spec import READ_EFFECTS, ToolSpec
from edictum.success import error_key


class ToolRegistry:
    """The tools that a turn may use, one spec per name.

    ``edictum.ToolRegistry`` is another class: the older library's table of side effects.
    """

    def __init__(self, tools: Iterable[ToolSpec | Callable[..., Any]] = ()) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self.resolved: dict[str, KnownTool] = {}  # the last answers of ``resolve``
        for each in tools:
            self.register(each)

    def register(self, candidate: ToolSpec | Callable[..., Any], **settings: Any) -> ToolSpec:
        """Add a tool: a ToolSpec, or a typed function with the settings of ``@tool``."""
        spec = candidate if isinstance(candidate, ToolSpec) else tool(**settings)(candidate)
        if spec.name in self._specs:
            message = f"The tool {spec.name!r} is registered already."
            raise EdictumConfigError(message, hint="Give each tool a name of its own.")
        self._specs[spec.name] = spec
        return spec

    def get(self, name: Any) -> ToolSpec | None:
        return self._specs.get(name) if isinstance(name, str) else None

    def names(self) -> tuple[str, ...]:
        return tuple(self._specs)

    def resolve(self, policy: Policy, name: Any) -> KnownTool | None:
        """Return the tool of this name with the settings that hold for calls under this policy."""
        known = self.resolved.get(name) if isinstance(name, str) else None
        if known is not None and known.policy is policy:
            return known
        spec = self.get(name)
        if spec is None:
            return None
        known = self.resolved[name] = resolve_tool(spec, policy)
        return known

    def under(self, policy: Policy) -> ToolRegistry:
        """Return a registry of the same tools, each as careful as this policy requires."""
        known = (self.resolve(policy, name) for name in self._specs)
        return ToolRegistry(each.spec for each in known if each is not None)

    def check(self) -> None:
        """Refuse a ``verify`` that names a tool which is not registered."""
        for spec in self:
            if spec.verify is not None and spec.verify not in self._specs:
                raise EdictumConfigError(
                    f"tool {spec.name!r}: verify names {spec.verify!r}, which is not registered.",
                    hint="Register the tool that verifies as well.",
                )

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._specs.values())

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __len__(self) -> int:
        return len(self._specs)


@record
class KnownTool:
    """A tool under a policy, with all that its calls need, prepared once.

    ``plan`` and ``spec`` combine the policy and the tool's own spec: the more careful of the two
    counts.
    """

    policy: Policy
    spec: ToolSpec  # None for a tool that does not exist: the validation gate refuses its calls
    plan: Plan
    fits: Callable[[Mapping[str, Any]], bool]  # False or an exception: validate to find out why
    schema: ArgumentSchema | None  # only if it has defaults to fill in
    judge: ResultCheck
    body: Callable[..., Any] | None  # takes JSON
    function: Callable[..., Any] | None  # as the host may pass it: it stands for the body
    tool: ToolSpec | None  # as it was registered
    parameters: Any = None  # source of the defaults that are not filled in


def resolve_tool(spec: ToolSpec, policy: Policy) -> KnownTool:
    plan, registered = policy.plan(spec.name), spec
    entry = spec.entry() if plan.entry is UNKNOWN_TOOL else merge_entries(plan.entry, spec.entry())
    spec = _restrict(spec, entry)
    try:
        schema = get_argument_schema(spec)
    except EdictumConfigError:  # a wrong schema: the validation gate says so
        schema = None
    return KnownTool(
        policy,
        spec,
        replace(plan, entry=entry),
        _never_fits if schema is None else schema.fits,
        schema if schema is not None and schema.defaults else None,
        make_result_check(spec.returns),
        spec.body,
        spec.function,
        registered,
        ReadLater(cache(lambda: declare((spec.function, spec.parameters)))),
    )


def resolve_unknown_tool(name: str, policy: Policy) -> KnownTool:
    """Return the stand-in for a tool that does not exist."""
    plan = policy.plan(name)
    no_spec: Any = None  # no call gets as far as the spec
    return KnownTool(policy, no_spec, plan, _never_fits, None, error_key, None, None, None)


def _restrict(spec: ToolSpec, entry: ToolEntry) -> ToolSpec:
    """Return the spec with the policy's side effect, which retries, replays and waves go by."""
    if (entry.side_effect, entry.idempotent) == (spec.side_effect, spec.idempotent):
        return spec
    may_repeat = entry.idempotent or entry.side_effect in READ_EFFECTS
    return replace(
        spec,
        side_effect=entry.side_effect,
        idempotent=entry.idempotent,
        max_retries=spec.max_retries if may_repeat else 0,
    )


def _never_fits(_arguments: Mapping[str, Any]) -> bool:
    return False


def to_registry(tools: Any) -> ToolRegistry:
    """Return a checked registry from a registry, or from a list of specs and functions."""
    registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
    registry.check()
    return registry


# --- Bodies for other processes -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecoratedFunction:
    """A function that is imported by a name under which its module holds a ToolSpec."""

    module: str
    name: str

    def __call__(self, **arguments: Any) -> Any:
        return self.spec().body(**arguments)

    def spec(self) -> Any:
        return resolve_name(f"{self.module}:{self.name}")


@dataclass(frozen=True, slots=True)
class TypedElsewhere:
    """A function whose argument conversion cannot be pickled, and is worked out again where it
    runs.
    """

    function: Callable[..., Any]

    def __call__(self, **arguments: Any) -> Any:
        try:
            typed = _make_typed_once(self.function)
        except TypeError:  # not hashable: an object that compares by its values
            typed = make_schemas(self.function)["typed"]
        return typed.body(**arguments)


@lru_cache(maxsize=256)
def _make_typed_once(function: Callable[..., Any]) -> Any:
    return make_schemas(function)["typed"]


def sendable(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool's body in a form that another process can import."""
    named = DecoratedFunction(
        getattr(body, "__module__", "") or "", getattr(body, "__qualname__", "")
    )
    try:
        spec = named.spec()
    except Exception:  # a local function, or a module that cannot be imported
        spec = None
    if isinstance(spec, ToolSpec) and spec.body is body:
        return named
    typed = getattr(body, "typed", None)
    return TypedElsewhere(typed.function) if isinstance(typed, TypedFunction) else body


# --- @tool ----------------------------------------------------------------------------------------


@overload
def tool(function: Callable[..., Any], /, **settings: Any) -> ToolSpec: ...


@overload
def tool(
    description: str | None = None, /, **settings: Any
) -> Callable[[Callable[..., Any]], ToolSpec]: ...


def tool(first: Any = None, /, **settings: Any) -> Any:
    """Make a ToolSpec from a typed function: ``@tool``, ``@tool("what it does")``,
    ``@tool(side_effect="read", timeout_s=5)`` or ``tool(function, side_effect="read")``; of a
    ToolSpec make another one with these settings.

    The schemas of arguments and result come from the type hints, the description from the
    docstring; a result that does not fit is a failure (``returns=None`` turns that off). In a turn
    the function is called with what its hints name: a date, an Enum, a model, where JSON has a text
    or an object. A parameter annotated ``DeadlineToken`` receives the call's deadline and is not
    part of the schema. Coroutine functions run as tasks and others in threads, unless ``isolation``
    says otherwise.
    """
    if isinstance(first, ToolSpec):
        return replace(first, **settings)
    if callable(first):
        return _make_spec(first, settings)
    if first is not None:
        settings = {"description": first, **settings}
    return lambda function: _make_spec(function, settings)


def _make_spec(function: Callable[..., Any], settings: dict[str, Any]) -> ToolSpec:
    schemas = (
        {"token_parameter": find_token_parameter(function)}
        if "parameters" in settings
        else make_schemas(function)
    )
    return ToolSpec(
        **{
            "name": get_name(function),
            "description": get_description(function),
            "function": function,
            **schemas,
            **settings,
        }
    )
