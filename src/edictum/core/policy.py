"""Policy: the contracts, hooks, limits and tool entries, compiled once, immutable, indexed by tool.

A call asks ``policy.plan(tool_name)`` and gets the contracts, hooks, limits and table entry that
can apply to that tool, in the order in which they were registered. Plans are cached; the cache is
bounded, because tool names come from a model and a model can invent any number of them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import reduce
from hashlib import sha256
from types import NoneType
from typing import Any, Final, TypeAlias
from weakref import ref

from edictum.core._records import record
from edictum.core.approvers import Approvers
from edictum.core.call import ToolCall, check_tool_name
from edictum.core.contract import Contract, Kind, Mode, Verdict
from edictum.core.decide import ask_each, make_after_asker, make_asker
from edictum.core.decision import Decision
from edictum.core.hooks import HookRegistration
from edictum.core.limits import (
    NO_LIMITS,
    Limit,
    OperationLimits,
    compile_together,
    limits_for,
    tighten_by_bundle,
    tools_for,
    width_of,
)
from edictum.core.parameters import find_field_sent_twice, has_fields_in_places
from edictum.core.tool_entry import UNKNOWN_TOOL, ToolEntry, inherit_entry
from edictum.core.values import digest

MAX_CACHED_PLANS = 1024
_GLOB = re.compile(r"[*?\[]")


@record
class SuccessRule:
    """Judges for some tools whether a result is a failure: ``judge`` returns a reason or None.

    ``retryable`` None: as the tool's entry says. ``for_model``: the rule states its own reason,
    which the model reads instead of the result.
    """

    tools: tuple[str, ...]
    judge: Callable[[Any, Any], str | None]
    name: str
    retryable: bool | None = None
    for_model: bool = False


@record
class Plan:
    """What applies to one tool."""

    tool: str
    entry: ToolEntry
    hooks_before: tuple[HookRegistration, ...]
    hooks_after: tuple[HookRegistration, ...]
    before: tuple[Contract, ...]
    session: tuple[Contract, ...]
    after: tuple[Contract, ...]
    limits: tuple[Limit, ...]
    rules: tuple[Limit, ...]  # limits that depend on the call, from the narrowest scope
    tools: tuple[str, ...]
    success_rules: tuple[SuccessRule, ...]
    passed: Decision  # shared by all calls to which no contract objects
    ask_before: Callable[[ToolCall], list[tuple[Contract, Any]]]
    ask_session: Callable[[Any], list[tuple[Contract, Any]]]
    ask_after: Callable[[ToolCall, Any], list[tuple[Contract, Any]]]
    memo: dict[str, Any]  # derived by other modules from this plan


class ToolIndex:
    """Items by tool: exact names in a dict, globs in a list."""

    __slots__ = ("_always", "_exact", "_globs")

    def __init__(self, items: Iterable[tuple[Sequence[str], Any]]) -> None:
        self._exact: dict[str, list[tuple[int, Any]]] = {}
        self._globs: list[tuple[int, re.Pattern[str], Any]] = []
        self._always: list[tuple[int, Any]] = []
        for position, (patterns, item) in enumerate(items):
            self._add(position, patterns, item)

    def _add(self, position: int, patterns: Sequence[str], item: Any) -> None:
        for pattern in dict.fromkeys(patterns):
            if pattern == "*":
                self._always.append((position, item))
            elif _GLOB.search(pattern):
                self._globs.append((position, re.compile(fnmatch.translate(pattern)), item))
            else:
                self._exact.setdefault(pattern, []).append((position, item))

    def matching(self, tool: str) -> list[Any]:
        """Return the items for a tool in the order of their registration."""
        found = dict(self._always)
        found.update(self._exact.get(tool, ()))
        found.update((position, item) for position, glob, item in self._globs if glob.match(tool))
        return [found[position] for position in sorted(found)]


class Policy:
    """An immutable set of contracts, hooks, limits and tool entries."""

    __slots__ = (
        "_after",
        "_before",
        "_bundle_digest",
        "_digest",
        "_hooks",
        "_limits",
        "_plans",
        "_session",
        "_success",
        "_tools",
        "contracts",
        "enforce_limits",
        "hooks",
        "limits",
        "mode",
        "session_limits",
        "success_rules",
        "tools",
        "unlisted",
        "version",
    )

    def __init__(
        self,
        *,
        contracts: Sequence[Contract] = (),
        hooks: Sequence[HookRegistration] = (),
        limits: OperationLimits | None = None,
        session_limits: Sequence[Limit] = (),
        tools: Mapping[str, ToolEntry] | None = None,
        success_rules: Sequence[SuccessRule] = (),
        version: str | None = None,
        unlisted: Contract | None = None,
        mode: Mode = "enforce",
        enforce_limits: bool = True,
        bundle_digest: Callable[[], str] | None = None,
    ) -> None:
        self.contracts = tuple(contracts)
        self.hooks = tuple(hooks)
        self.limits = limits if limits is not None else OperationLimits()
        self.session_limits = tuple(session_limits)
        self.tools = dict(tools or {})
        self.success_rules = tuple(success_rules)
        self.version = version
        self.unlisted = unlisted  # asked about tools that are not in the table
        self.enforce_limits = enforce_limits
        self.mode = mode  # of the bundle as a whole; its contracts carry their own
        self._before = self._index(Kind.PRE, Kind.SANDBOX)
        self._session = self._index(Kind.SESSION)
        self._after = self._index(Kind.POST)
        self._hooks = ToolIndex(((hook.tool,), hook) for hook in self.hooks)
        self._tools = ToolIndex(((name,), name) for name in self.tools)
        self._success = ToolIndex((rule.tools, rule) for rule in self.success_rules)
        self._limits = compile_together(self.limits, self.session_limits, enforce=enforce_limits)
        self._plans: dict[str, Plan] = {}
        self._bundle_digest = bundle_digest
        self._digest: str | None = None

    @property
    def has_bundle(self) -> bool:
        """Whether any of the policy comes from a bundle and not from Python."""
        return self._bundle_digest is not None

    def digest(self) -> str:
        """Return a digest of what the policy says, computed once.

        For a bundle that is everything but its comments, store and sinks. For what was given in
        Python it is what can be compared between processes: names, tools, effects and limits, and
        the version, which changes with the rest.
        """
        if self._digest is None:
            bundle = self.version if self._bundle_digest is None else self._bundle_digest()
            contracts = [
                (it.id, it.kind, it.tools, it.effect, it.mode, *_terms_of_asking(it))
                for it in self.contracts
            ]
            hooks = [(hook.name, hook.phase, hook.tool) for hook in self.hooks]
            limits = [_plain_fields(limit) for limit in self._limits]
            tools = {name: _plain_fields(entry) for name, entry in self.tools.items()}
            self._digest = digest(bundle, contracts, hooks, limits, tools, self.mode)
        return self._digest

    def _index(self, *kinds: Kind) -> ToolIndex:
        # sorted by kind: preconditions are asked before sandboxes
        chosen = [
            contract for kind in kinds for contract in self.contracts if contract.kind is kind
        ]
        return ToolIndex((contract.tools, contract) for contract in chosen)

    def plan(self, tool: str) -> Plan:
        try:
            return self._plans[tool]
        except (KeyError, TypeError):  # TypeError: not even hashable, so not a name
            return self._new_plan(tool)

    def _new_plan(self, tool: str) -> Plan:
        check_tool_name(tool)
        if len(self._plans) >= MAX_CACHED_PLANS:
            # as good as evicting one by one, and safe in several threads
            self._plans.clear()
        plan = self._plans[tool] = self._build(tool)
        return plan

    def _build(self, tool: str) -> Plan:
        hooks = self._hooks.matching(tool)
        hooks_before = tuple(hook for hook in hooks if hook.phase == "before")
        hooks_after = tuple(hook for hook in hooks if hook.phase == "after")
        session, after = tuple(self._session.matching(tool)), tuple(self._after.matching(tool))
        every = limits_for(tool, self._limits)
        limits = tuple(limit for limit in every if not limit.depends_on_call)
        rules = sorted((limit for limit in every if limit.depends_on_call), key=width_of)
        tools, before = tools_for(tool, limits), tuple(self._before.matching(tool))
        if self.unlisted is not None and not self.is_listed(tool):
            before = (self.unlisted, *before)
        entry = self.entry(tool)
        judges = any((hooks_before, before, session, after, rules, entry.amounts, entry.actual))
        ask_before = make_asker(before)
        return Plan(
            tool=tool,
            entry=entry,
            hooks_before=hooks_before,
            hooks_after=hooks_after,
            before=before,
            session=session,
            after=after,
            limits=limits,
            rules=tuple(rules),
            tools=tools,
            success_rules=tuple(self._success.matching(tool)),
            passed=Decision(asked=before),
            ask_before=_check_names(ask_before) if judges else ask_before,
            ask_session=ask_each(session),
            ask_after=make_after_asker(after),
            memo={},
        )

    def with_tool(self, name: str, entry: ToolEntry) -> Policy:
        """Return the policy with another entry for a tool."""
        return self._change(tools={**self.tools, name: entry})

    def without_default_limits(self) -> Policy:
        """Return the policy with only the limits that its bundle states."""
        return self._change(limits=tighten_by_bundle(NO_LIMITS, self.session_limits))

    def _change(self, **changed: Any) -> Policy:
        given = {slot: getattr(self, slot) for slot in self.__slots__ if not slot.startswith("_")}
        return Policy(**given | {"bundle_digest": self._bundle_digest} | changed)

    def can_allow(self, tool: str, mode: Mode) -> bool:
        """Return whether some call of a tool may be allowed, as far as that can be known without a
        call.
        """
        plan = self.plan(tool)
        is_denied = any(
            it.is_unconditional and it.effect == "deny" and not it.is_observed(mode)
            for it in plan.before
        )
        is_closed = mode == "enforce" and any(limit.refuses_all for limit in plan.limits)
        return not (is_denied or is_closed)

    def has_approvers(self) -> bool:
        """Return whether some contract or limit restricts who may approve."""
        askers: list[Contract | Limit] = [*self.contracts, *self._limits]
        return any(it.approvers is not None for it in askers)

    def is_listed(self, tool: str) -> bool:
        """Return whether the table has an entry for this tool, by name or by glob."""
        return tool in self.tools or bool(self._tools.matching(tool))

    def entry(self, tool: str) -> ToolEntry:
        """Return the tool's own entry, else that of the most specific matching glob, else the worst
        case.

        Amounts and a pin that it does not state come from the globs that match, the more specific
        first.
        """
        globs = [name for name in self._tools.matching(tool) if name != tool]
        globs.sort(key=_count_literals, reverse=True)
        names = [tool, *globs] if tool in self.tools else globs
        entries = [self.tools[name] for name in names]
        return reduce(inherit_entry, entries) if entries else UNKNOWN_TOOL


SENT_TWICE: Final = Contract(
    id="field_sent_twice",
    kind=Kind.PRE,
    check=lambda call: Verdict.fail(find_field_sent_twice(call.args, call.parameters)),
    source="arguments",
)
Asker: TypeAlias = Callable[[ToolCall], list[tuple[Contract, Any]]]


def join_versions(versions: Sequence[str]) -> str:
    """Return the version of a policy that is made of the bundles of these versions."""
    return versions[0] if len(versions) == 1 else sha256(":".join(versions).encode()).hexdigest()


def _check_names(ask: Asker) -> Asker:
    """Return a function that asks contracts, and objects to a call that sends a field twice,
    because they could judge one value and the tool use the other.
    """
    harmless: Any = None  # parameters without such fields; mostly a tool has one function

    def ask_them(call: ToolCall) -> list[tuple[Contract, Any]]:
        nonlocal harmless
        if (parameters := call.parameters) is harmless:
            return ask(call)
        if why := find_field_sent_twice(call.args, parameters):
            return [(SENT_TWICE, Verdict.fail(why)), *ask(call)]
        if type(parameters) is ref and not has_fields_in_places(parameters):
            harmless = parameters
        return ask(call)

    return ask_them


def _terms_of_asking(it: Contract) -> tuple[Any, ...]:
    return it.timeout, it.timeout_effect, it.approvers


def _plain_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are equal in every process: no functions."""
    stated = {item.name: getattr(value, item.name) for item in fields(value)}
    kinds = (str, int, float, Enum, NoneType, Approvers)
    return {name: item for name, item in stated.items() if isinstance(item, kinds)}


def _count_literals(glob: str) -> int:
    """Return how many characters of a name a glob spells out."""
    return len(re.sub(r"\[[^]]*\]|[*?]", "", glob))
