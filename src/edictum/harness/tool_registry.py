"""ToolRegistry: the tools of a turn by name; and ``@tool``, which makes a ToolSpec from a typed
function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, overload

from edictum.core._records import record, replace
from edictum.core.policy import UNKNOWN_TOOL, Plan, Policy, ToolEntry, merge_entries
from edictum.errors import EdictumConfigError
from edictum.harness._functions import description_of, name_of, token_parameter
from edictum.harness._schemas import judge_of, schemas_of
from edictum.harness._typed_arguments import TypedFunction
from edictum.harness.arg_validator import KnownSchema, known_of
from edictum.harness.tool_spec import READS, ToolSpec
from edictum.success import error_key


class ToolRegistry:
    """The tools that a turn may use. One description per name; there is no second place that could
    disagree.
    """

    def __init__(self, tools: Iterable[ToolSpec | Callable[..., Any]] = ()) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self.known: dict[str, KnownTool] = {}  # what ``under`` has answered last
        for each in tools:
            self.register(each)

    def register(self, candidate: ToolSpec | Callable[..., Any], **settings: Any) -> ToolSpec:
        """Add a tool: a ToolSpec, or a typed function with the settings of ``@tool``."""
        spec = candidate if isinstance(candidate, ToolSpec) else tool(**settings)(candidate)
        if spec.name in self._specs:
            raise EdictumConfigError(
                f"The tool {spec.name!r} is registered already.",
                hint="Give each tool a name of its own.",
            )
        self._specs[spec.name] = spec
        return spec

    def get(self, name: Any) -> ToolSpec | None:
        return self._specs.get(name) if isinstance(name, str) else None

    def names(self) -> tuple[str, ...]:
        return tuple(self._specs)

    def under(self, policy: Policy, name: Any) -> KnownTool | None:
        """A tool by its name, as calls under this policy need it."""
        spec = self.get(name)
        if spec is None:
            return None
        known = self.known[name] = know(spec, policy)
        return known

    def as_under(self, policy: Policy) -> ToolRegistry:
        """The same tools, each as careful as this policy demands."""
        registry = ToolRegistry()
        for name in self._specs:
            known = self.known.get(name)
            known = (
                known if known is not None and known.policy is policy else self.under(policy, name)
            )
            registry._specs[name] = known.spec  # type: ignore[union-attr]  # it is registered, so it is known
        return registry

    def check(self) -> None:
        """Refuse names of verifying tools that are not there."""
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
    """A tool, and what every call of it asks for, worked out once.

    In ``plan`` and ``spec`` the policy and the tool's own spec have been brought together: the more
    careful of the two counts.
    """

    policy: Policy
    spec: ToolSpec  # of a tool that is not known, None: no call of it gets so far
    plan: Plan
    fits: Callable[
        [Mapping[str, Any]], bool
    ]  # whether arguments fit the schema; False, or an exception, may mean something else
    schema: KnownSchema | None  # where it has defaults to be filled in
    judge: Callable[[Any], str | None]  # why a result is a failure
    body: Callable[..., Any] | None  # the tool's own function, which is called with JSON
    function: (
        Callable[..., Any] | None
    )  # who hands over this, or the tool as it was registered, means that body
    tool: ToolSpec | None


def know(spec: ToolSpec, policy: Policy) -> KnownTool:
    plan, given = policy.plan(spec.name), spec
    entry = spec.entry() if plan.entry is UNKNOWN_TOOL else merge_entries(plan.entry, spec.entry())
    spec = _as_careful_as(entry, spec)
    plan, judge = replace(plan, entry=entry), judge_of(spec.returns, spec.fitting)
    try:
        schema = known_of(spec)
    except EdictumConfigError:
        return KnownTool(policy, spec, plan, _never, None, judge, spec.body, spec.function, given)
    return KnownTool(
        policy,
        spec,
        plan,
        schema.fits,
        schema if schema.defaults else None,
        judge,
        spec.body,
        spec.function,
        given,
    )


def not_known(name: str, policy: Policy) -> KnownTool:
    """A tool that there is not, under a name that can be written down."""
    return KnownTool(policy, None, policy.plan(name), _never, None, error_key, None, None, None)  # type: ignore[arg-type]


def _as_careful_as(entry: ToolEntry, spec: ToolSpec) -> ToolSpec:
    """The spec, with the effect that the policy knows of: what a turn repeats, replays and runs
    side by side depends on it.
    """
    if (entry.side_effect, entry.idempotent) == (spec.side_effect, spec.idempotent):
        return spec
    again = entry.idempotent or entry.side_effect in READS
    return replace(
        spec,
        side_effect=entry.side_effect,
        idempotent=entry.idempotent,
        max_retries=spec.max_retries if again else 0,
    )


def _never(_arguments: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class DecoratedFunction:
    """A function by the name under which its module holds a ToolSpec: another process finds it
    there, and not under its own.
    """

    module: str
    name: str

    def __call__(self, **arguments: Any) -> Any:
        return self.spec().body(**arguments)

    def spec(self) -> Any:
        found: Any = import_module(self.module)
        for step in self.name.split("."):
            found = getattr(found, step, None)
        return found


@dataclass(frozen=True, slots=True)
class TypedElsewhere:
    """A function that can be sent as it is. How its arguments are read cannot, so that is worked
    out where it runs.
    """

    function: Callable[..., Any]

    def __call__(self, **arguments: Any) -> Any:
        return _typed(self.function).body(**arguments)


def _typed(function: Callable[..., Any]) -> TypedFunction:
    try:
        hash(function)
    except TypeError:  # an object that compares by its values
        return schemas_of(function)["typed"]  # type: ignore[no-any-return]
    return _typed_once(function)


@lru_cache(maxsize=256)
def _typed_once(function: Callable[..., Any]) -> TypedFunction:
    return schemas_of(function)["typed"]  # type: ignore[no-any-return]


def sendable(body: Callable[..., Any]) -> Callable[..., Any]:
    """A tool's body as it can be sent to another process. ``@tool`` has taken the place of the
    function it decorates.
    """
    named = DecoratedFunction(
        getattr(body, "__module__", "") or "", getattr(body, "__qualname__", "")
    )
    try:
        spec = named.spec() if named.module and named.name else None
    except Exception:  # a module that cannot be imported: whoever sends the function will say so
        spec = None
    if isinstance(spec, ToolSpec) and spec.body is body:
        return named
    typed = getattr(body, "typed", None)
    return TypedElsewhere(typed.function) if isinstance(typed, TypedFunction) else body


def as_registry(tools: Any) -> ToolRegistry:
    """What a user passes as tools: a registry, or a list of specs and functions."""
    registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
    registry.check()
    return registry


@overload
def tool(function: Callable[..., Any], /) -> ToolSpec: ...


@overload
def tool(
    description: str | None = None, /, **settings: Any
) -> Callable[[Callable[..., Any]], ToolSpec]: ...


def tool(first: Any = None, /, **settings: Any) -> Any:
    """Make a ToolSpec from a typed function: ``@tool``, ``@tool("what it does")`` or
    ``@tool(side_effect="read", timeout_s=5)``.

    The schemas of arguments and result come from the type hints, the description from the
    docstring; a result that does not fit is a failure (``returns=None`` turns that off). In a turn
    the function is called with what its hints name: a date, an Enum, a model, where JSON has a text
    or an object. A parameter annotated ``DeadlineToken`` receives the call's deadline and is no
    part of the schema. Coroutine functions run as tasks and others in threads, unless ``isolation``
    says otherwise.
    """
    if callable(first):
        return _spec_of(first, {})
    if first is not None:
        settings = {"description": first, **settings}
    return lambda function: _spec_of(function, settings)


def _spec_of(function: Callable[..., Any], settings: dict[str, Any]) -> ToolSpec:
    found: dict[str, Any] = {
        "name": name_of(function),
        "description": description_of(function),
        "function": function,
    }
    found |= (
        {"token_parameter": token_parameter(function)}
        if "parameters" in settings
        else schemas_of(function)
    )
    return ToolSpec(**{**found, **settings})
