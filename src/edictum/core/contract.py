"""Contract and Verdict, and the decorators that make contracts from Python functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from edictum.core.freeze import EMPTY, freeze_args
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
Effect = Literal["deny", "approve", "warn", "redact"]
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
EFFECTS: dict[Kind, tuple[Effect, ...]] = {
    Kind.PRE: ("deny", "approve"),
    Kind.SANDBOX: ("deny", "approve"),
    Kind.SESSION: ("deny",),
    Kind.POST: ("warn", "redact", "deny"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A contract's answer. ``Verdict.pass_()`` is one shared value, so that agreeing costs
    nothing.
    """

    passed: bool
    message: str | None = None
    metadata: Mapping[str, Any] = EMPTY

    @staticmethod
    def pass_() -> Verdict:
        return PASS

    @staticmethod
    def fail(message: str, **metadata: Any) -> Verdict:
        return Verdict(False, bounded(message), freeze_args(metadata))

    @property
    def policy_error(self) -> bool:
        return bool(self.metadata.get("policy_error"))


PASS = Verdict(True)
SKIPPED = Verdict(True, "not asked: its `when` did not hold")

Check = Callable[..., Verdict | Awaitable[Verdict]]


def bounded(message: str) -> str:
    text = message if isinstance(message, str) else str(message)
    return text if len(text) <= MESSAGE_MAX_CHARS else text[: MESSAGE_MAX_CHARS - 3] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One rule. ``check`` gets the call (pre, sandbox), the session (session), or the call and the
    result (post).

    A contract can be called like the function it was made from, which is how people test theirs.
    ``fuse`` makes one function of many contracts that a compiler produced: it asks them all and
    returns the answers that are not a plain pass.
    """

    id: str
    kind: Kind
    check: Check
    tools: tuple[str, ...] = ("*",)
    effect: Effect = "deny"
    mode: Mode | None = None
    source: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = EMPTY
    timeout: float = 300
    timeout_effect: Literal["deny", "allow"] = "deny"
    redact: Callable[[Any], Any] | None = None
    shadow: bool = False
    fuse: Callable[[tuple[Contract, ...]], Callable[..., list[tuple[Contract, Any]]]] | None = None

    def __post_init__(self) -> None:
        where = f"contract {self.id!r}"
        if not isinstance(self.id, str) or not self.id:
            raise EdictumConfigError(
                f"A contract needs an id; got {self.id!r}.",
                hint="Give it a short name, e.g. id='no-rm'.",
            )
        if not callable(self.check):
            raise EdictumConfigError(
                f"{where}: check is not callable: {self.check!r}.", hint="Pass a function."
            )
        if self.fuse is None and self.kind in SUBJECTS:
            check_takes(f"{where}: its function", self.check, *SUBJECTS[self.kind])
        if not self.tools or not all(isinstance(tool, str) and tool for tool in self.tools):
            raise EdictumConfigError(
                f"{where}: tools must be non-empty names or globs, got {self.tools!r}.",
                hint="'*' means all.",
            )
        _check_terms(self, where)
        if self.effect not in EFFECTS[self.kind]:
            allowed = ", ".join(EFFECTS[self.kind])
            raise EdictumConfigError(
                f"{where}: effect {self.effect!r} is not for a {self.kind} contract.",
                hint=f"Use one of: {allowed}.",
            )
        check_mode(self.mode, where, optional=True)
        if self.timeout_effect not in ("deny", "allow"):
            raise EdictumConfigError(
                f"{where}: timeout_effect is {self.timeout_effect!r}.",
                hint="Use 'deny' or 'allow'.",
            )
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

    def observed(self, guard_mode: Mode) -> bool:
        """A contract that only observes reports what it would have done and changes nothing."""
        return guard_mode == "observe" or self.mode == "observe" or self.shadow


def _check_terms(contract: Contract, where: str) -> None:
    if contract.kind not in tuple(Kind):
        raise EdictumConfigError(
            f"{where}: kind is {contract.kind!r}.", hint=f"Use one of: {', '.join(Kind)}."
        )
    timeout: object = contract.timeout
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise EdictumConfigError(
            f"{where}: timeout is {timeout!r}.", hint="Use seconds, more than 0."
        )
    if contract.redact is not None and not callable(contract.redact):
        raise EdictumConfigError(
            f"{where}: redact is {contract.redact!r}, not a function.",
            hint="Pass a function of the result.",
        )
    if iscoroutinefunction(contract.redact):
        raise EdictumConfigError(
            f"{where}: redact is a coroutine function.",
            hint="Pass an ordinary function of the result.",
        )
    tags: Any = contract.tags
    if (
        isinstance(tags, str)
        or not isinstance(tags, Iterable)
        or not all(isinstance(tag, str) for tag in tags)
    ):
        raise EdictumConfigError(f"{where}: tags is {tags!r}.", hint="Use a list of texts.")


def check_mode(mode: object, where: str, *, optional: bool = False) -> None:
    if mode in ("enforce", "observe") or (optional and mode is None):
        return
    raise EdictumConfigError(f"{where}: mode is {mode!r}.", hint="Use 'enforce' or 'observe'.")


def _only_when(check: Check, when: Callable[[Any], bool]) -> Check:
    def guarded(call: Any, *rest: Any) -> Verdict | Awaitable[Verdict]:
        return check(call, *rest) if when(call) else SKIPPED

    return guarded


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
            f"{label}: `when` is no plain function: {when!r}.",
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
    ``timeout``, ``timeout_effect``.
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
    """Make a contract of ``function(session) -> Verdict``. Used bare or with options, as
    ``@session_contract(mode="observe")``.
    """
    make = _decorator(Kind.SESSION, "*", None, options)
    return make if function is None else make(function)


def with_mode(contract: Contract, default: Mode | None) -> Contract:
    """The contract with its mode filled in from a default, when it has none of its own."""
    return (
        contract
        if contract.mode is not None or default is None
        else replace(contract, mode=default)
    )
