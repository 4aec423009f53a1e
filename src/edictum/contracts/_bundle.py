"""A bundle as values: the checked content of a file, before it is compiled into a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from edictum.contracts._detect import OwnSecret
from edictum.contracts._expressions import Expression
from edictum.contracts._problems import BundleProblem, Place
from edictum.contracts._selectors import Selector
from edictum.core.approvers import Approvers
from edictum.core.contract import ContractEffect, Kind, Mode

Style = Literal["redact", "mask", "hash"]
STYLES: tuple[Style, ...] = get_args(Style)
Unlisted = Literal["allow", "deny", "approve"]
MissingArgs = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class AmountSpec:
    """An amount that a tool states; ``unread`` is the warning for when no limit reads it."""

    value: float | Selector
    unread: BundleProblem = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractSpec:
    """One contract: pre and post have ``when``, session ``scope``, ``limits`` and perhaps ``when``,
    sandbox ``bounds``.

    ``budgets`` are the amounts that its limits read, each with the warning for when no tool states
    it.
    """

    id: str
    kind: Kind
    effect: ContractEffect
    message: str
    tools: tuple[str, ...] = ("*",)
    mode: Mode | None = None
    enabled: bool = True
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 300
    timeout_effect: Literal["deny", "allow"] = "deny"
    approvers: Approvers | None = None
    when: Expression | None = None
    scope: str = "session"
    missing_args: MissingArgs | None = None
    style: Style = "redact"  # how a redaction shows what it took out
    limits: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, BundleProblem] = field(default_factory=dict, compare=False)
    bounds: Mapping[str, Any] = field(default_factory=dict)
    timezone: str = "UTC"
    source: str = ""
    place: Place = field(default=Place(1, 1), compare=False)
    shadow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessSpec:
    """What counts as a failure of some tools."""

    id: str
    tools: tuple[str, ...]
    failure_when: Expression
    message: str | None = None
    retryable: bool | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One file, or several composed."""

    name: str
    source: str
    mode: Mode | None = None
    unlisted_tools: Unlisted | None = None
    missing_args: MissingArgs | None = None
    contracts: tuple[ContractSpec, ...] = ()
    success: tuple[SuccessSpec, ...] = ()
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secrets: tuple[OwnSecret, ...] = ()
    session: Mapping[str, Any] = field(default_factory=dict)
    approvals: Mapping[str, Any] = field(default_factory=dict)
    observability: Mapping[str, Any] = field(default_factory=dict)
    observe_alongside: bool = False
    version: str = ""
    warnings: tuple[BundleProblem, ...] = ()
