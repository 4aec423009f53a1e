"""Contract and Verdict, and the decorators that make contracts from Python functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from edictum.core._records import frozen_maker
from edictum.core.approvers import Approvers
from edictum.core.freeze import EMPTY, freeze_args
from edictum.core.redaction import shorten_without_secrets
from edictum.core.signatures import check_takes
from edictum.errors import EdictumConfigError

if TYPE_CHECKING:
    from edictum.core.contract_types import (
        PostCheck,
        PostOptions,
        PreCheck,
        PreOptions,
        Reading,
        Says,
        SessionCheck,
        SessionDecorator,
        SessionOptions,
        When,
    )

Mode = Literal["enforce", "observe"]
ContractEffect = Literal["deny", "approve", "warn", "redact"]
MESSAGE_MAX_CHARS = 500


class Kind(StrEnum):
    """When a contract is asked, and what it is shown."""

    PRE = "pre"  # the call, before it runs
    SANDBOX = "sandbox"  # the call, before it runs: is it inside its bounds?
    SESSION = "session"  # the session's counters, before it runs
    POST = "post"  # the call and its result


RECORD_TYPES = {
    Kind.PRE: "precondition",
    Kind.SANDBOX: "sandbox",
    Kind.SESSION: "session_contract",
    Kind.POST: "postcondition",
}
SUBJECTS = {
    Kind.PRE: ("call",),
    Kind.SANDBOX: ("call",),
    Kind.SESSION: ("session",),
    Kind.POST: ("call", "result"),
}
EFFECTS: dict[Kind, tuple[ContractEffect, ...]] = {
    Kind.PRE: ("deny", "approve"),
    Kind.SANDBOX: ("deny", "approve"),
    Kind.SESSION: ("deny",),
    Kind.POST: ("warn", "redact", "deny"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A contract's answer. ``Verdict.pass_()`` is one shared value."""

    passed: bool
    message: str | None = None
    metadata: Mapping[str, Any] = EMPTY

    @staticmethod
    def pass_() -> Verdict:
        return PASS

    @staticmethod
    def fail(message: str, **metadata: Any) -> Verdict:
        frozen = freeze_args(metadata) if metadata else EMPTY
        return make_verdict(False, shorten_message(message), frozen)

    @property
    def policy_error(self) -> bool:
        return bool(self.metadata.get("policy_error"))

    @property
    def for_operators(self) -> bool:
        """Whether the message may quote what was raised; a model reads only whose error it is."""
        return self.policy_error and bool(self.metadata.get("for_operators"))


make_verdict = frozen_maker(Verdict)
PASS = Verdict(True)
SKIPPED = Verdict(True, "not asked: its `when` did not hold")

Check = Callable[..., Verdict | Awaitable[Verdict]]


def shorten_message(message: str) -> str:
    text = message if isinstance(message, str) else str(message)
    return shorten_without_secrets(text, MESSAGE_MAX_CHARS)


# How programs written for the older library read contracts, which were functions with attributes.
OLDER_NAMES = {
    "_edictum_type": "record_type",
    "_edictum_observe": "shadow",
    **{
        f"_edictum_{name}": name
        for name in (
            *("id", "tool", "tools", "when", "effect", "source", "mode", "shadow", "tags"),
            *("metadata", "timeout", "timeout_effect"),
        )
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One rule. ``check`` gets the call (pre, sandbox), the session, or the call and the result.

    A contract can be called like the function it was made from. ``is_unconditional``: it objects to
    every call of its tools. ``fuse`` makes one function of many
    contracts that a compiler produced: it asks them all, and returns the answers that do not pass.
    """

    id: str
    kind: Kind
    check: Check
    tools: tuple[str, ...] = ("*",)
    effect: ContractEffect = "deny"
    mode: Mode | None = None
    source: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = EMPTY
    timeout: float = 300
    timeout_effect: Literal["deny", "allow"] = "deny"
    approvers: Approvers | None = None
    redact: Callable[[Any], Any] | None = None
    shadow: bool = False
    is_unconditional: bool = False
    fuse: Callable[[tuple[Contract, ...]], Callable[..., list[tuple[Contract, Any]]]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise EdictumConfigError(
                f"A contract needs an id; got {self.id!r}.",
                hint="Give it a short name, e.g. id='no-rm'.",
            )
        where = f"contract {self.id!r}"
        for is_wrong, problem, hint in CONTRACT_RULES:
            if is_wrong(self):
                raise EdictumConfigError(f"{where}: {problem(self)}.", hint=hint)
        if self.fuse is None:
            check_takes(f"{where}: its function", self.check, *SUBJECTS[self.kind])
        if self.effect not in EFFECTS[self.kind]:
            hint = f"Use one of: {', '.join(EFFECTS[self.kind])}."
            problem_text = f"effect {self.effect!r} is not for a {self.kind} contract"
            raise EdictumConfigError(f"{where}: {problem_text}.", hint=hint)
        check_mode(self.mode, where, optional=True)
        if not self.source:
            object.__setattr__(self, "source", RECORD_TYPES[self.kind])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.check(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return self.id

    @property
    def record_type(self) -> str:
        return RECORD_TYPES[self.kind]

    @property
    def when(self) -> Callable[[Any], bool] | None:
        """The function of the call that says whether ``check`` is asked; None for always."""
        return getattr(self.check, "only_when", None)

    # hidden from type checkers, which would believe that every name exists
    if not TYPE_CHECKING:  # pragma: no branch

        def __getattr__(self, name: str) -> Any:
            field = OLDER_NAMES.get(name)
            if field is None:
                raise AttributeError(f"'Contract' object has no attribute {name!r}", obj=self)
            value = self.tools[0] if field == "tool" else getattr(self, field)
            return list(value) if isinstance(value, tuple) else value

    def is_observed(self, guard_mode: Mode) -> bool:
        """Return whether the contract only reports what it would have done."""
        return guard_mode == "observe" or self.mode == "observe" or self.shadow


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _are_texts(values: Any) -> bool:
    is_list = isinstance(values, Iterable) and not isinstance(values, str)
    return is_list and all(isinstance(value, str) for value in values)


Rule = tuple[Callable[[Contract], bool], Callable[[Contract], str], str]
CONTRACT_RULES: tuple[Rule, ...] = (
    (
        lambda it: not callable(it.check),
        lambda it: f"check is not callable: {it.check!r}",
        "Pass a function.",
    ),
    (
        lambda it: it.kind not in tuple(Kind),
        lambda it: f"kind is {it.kind!r}",
        f"Use one of: {', '.join(Kind)}.",
    ),
    (
        lambda it: not it.tools or not all(isinstance(tool, str) and tool for tool in it.tools),
        lambda it: f"tools must be non-empty names or globs, got {it.tools!r}",
        "'*' means all.",
    ),
    (
        lambda it: not _is_duration(it.timeout),
        lambda it: f"timeout is {it.timeout!r}",
        "Use seconds, more than 0.",
    ),
    (
        lambda it: it.timeout_effect not in ("deny", "allow"),
        lambda it: f"timeout_effect is {it.timeout_effect!r}",
        "Use 'deny' or 'allow'.",
    ),
    (
        lambda it: it.approvers is not None and type(it.approvers) is not Approvers,
        lambda it: f"approvers is {it.approvers!r:.80}",
        "Use Approvers(roles=[...]).",
    ),
    (
        lambda it: it.approvers is not None and it.effect != "approve",
        lambda it: f"it has approvers, but its effect is {it.effect!r}",
        "Use effect='approve', or remove approvers.",
    ),
    (
        lambda it: it.approvers is not None and it.timeout_effect == "allow",
        lambda _: "it has approvers, but silence counts as a yes",
        "Use timeout_effect='deny'.",
    ),
    (
        lambda it: it.redact is not None and not callable(it.redact),
        lambda it: f"redact is {it.redact!r}, not a function",
        "Pass a function of the result.",
    ),
    (
        lambda it: iscoroutinefunction(it.redact),
        lambda _: "redact is a coroutine function",
        "Pass an ordinary function of the result.",
    ),
    (
        lambda it: not _are_texts(it.tags),
        lambda it: f"tags is {it.tags!r}",
        "Use a list of texts.",
    ),
)


def check_mode(mode: object, where: str, *, optional: bool = False) -> None:
    if mode in ("enforce", "observe") or (optional and mode is None):
        return
    raise EdictumConfigError(f"{where}: mode is {mode!r}.", hint="Use 'enforce' or 'observe'.")


def _only_when(check: Check, when: Callable[[Any], bool]) -> Check:
    def check_when(call: Any, *rest: Any) -> Verdict | Awaitable[Verdict]:
        return check(call, *rest) if when(call) else SKIPPED

    vars(check_when)["only_when"] = when
    return check_when


def _decorator(
    kind: Kind,
    tool: str | Iterable[str],
    when: Callable[[Any], bool] | None,
    options: Mapping[str, Any],
) -> Callable[[Check], Contract]:
    label = f"@{RECORD_TYPES[kind]}"
    if callable(tool):
        raise EdictumConfigError(
            f"{label} was used without a tool.",
            hint=f'Write {label}("tool_name"), or {label}("*") for all tools.',
        )
    if when is not None and (not callable(when) or iscoroutinefunction(when)):
        raise EdictumConfigError(
            f"{label}: `when` is not an ordinary function: {when!r}.",
            hint="Pass a function of the call that is not async.",
        )
    if not isinstance(tool, Iterable):
        raise EdictumConfigError(
            f"{label}: tool is {tool!r}.", hint="Use a tool's name, a glob, or several."
        )
    tools = (tool,) if isinstance(tool, str) else tuple(tool)

    def make(function: Check) -> Contract:
        if not callable(function):
            raise EdictumConfigError(
                f"{label} decorates functions, not {type(function).__name__}.",
                hint="Put it above a def.",
            )
        settings: dict[str, Any] = {"id": getattr(function, "__name__", "anonymous"), **options}
        check = function if when is None else _only_when(function, when)
        return Contract(kind=kind, check=check, tools=tools, **settings)

    return make


def precondition(
    tool: str | Iterable[str], when: When | None = None, **options: Unpack[PreOptions]
) -> Callable[[PreCheck], Contract]:
    """Make a contract of ``function(call) -> Verdict`` that is asked before ``tool`` (a name, a
    glob, or several) runs.

    Options: ``id``, ``effect`` ("deny" or "approve"), ``mode``, ``tags``, ``metadata``,
    ``timeout``, ``timeout_effect``, ``approvers``.
    """
    return _decorator(Kind.PRE, tool, when, options)


def postcondition(
    tool: str | Iterable[str], when: When | None = None, **options: Unpack[PostOptions]
) -> Callable[[PostCheck], Contract]:
    """Make a contract of ``function(call, result) -> Verdict`` that is asked after ``tool`` ran.

    Options: ``id``, ``effect`` ("warn", "redact" or "deny", which suppresses the output), ``mode``,
    ``tags``, ``metadata``, ``redact`` (a function from the result to the result that may be shown).
    """
    return _decorator(Kind.POST, tool, when, {"effect": "warn", **options})


@overload
def session_contract(function: SessionCheck, /) -> Contract: ...
@overload
def session_contract(function: Callable[[Reading], Says], /) -> Contract: ...
@overload
def session_contract(
    function: None = None, /, **options: Unpack[SessionOptions]
) -> SessionDecorator: ...
def session_contract(
    function: Check | None = None, /, **options: Unpack[SessionOptions]
) -> Contract | SessionDecorator:
    """Make a contract of ``function(session) -> Verdict``; used with or without options."""
    make = _decorator(Kind.SESSION, "*", None, options)
    return make if function is None else make(function)
