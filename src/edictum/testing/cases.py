"""Cases: what contracts must do, as data; docs/guides/testing-contracts.md describes all keys.

    bundle: contracts.yaml            # a file beside this one, a bundle, or a list of layers
    cases:
      - note: files/env-is-denied     # unique; a path, so that cases can be selected by it
        call: {tool: read_file, args: {path: /srv/.env}}
        want: {decision: deny, contract: no-env}

With pytest::

    @pytest.mark.parametrize("case", load_cases("tests/cases.yaml"), ids=str)
    def test_case(case):
        case.check()
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from edictum._factories import BundleOptions
from edictum.approval.memory import InMemoryApprovalBackend
from edictum.approval.port import ApprovalDecision, ApprovalRequest, ApprovalStatus
from edictum.contracts._load import load_yaml
from edictum.contracts._tree import to_plain
from edictum.core.call import Principal
from edictum.errors import EdictumConfigError, EdictumError
from edictum.evaluation import EvaluationResult
from edictum.guard import Edictum
from edictum.outcomes import ToolDenied, ToolFailure, ToolOutcome, outcome_kind
from edictum.sessions.memory import MemoryLedger
from edictum.testing._case_checks import COUNTS, OPTIONS_OF_CALLS, CaseChecker
from edictum.testing.fakes import FakeClock

MAX_CASES_BYTES = 16 << 20
HEAD = {"apiVersion": "edictum/v1", "kind": "ContractBundle", "metadata": {"name": "case"}}
_SESSION_ID = "case"


class CaseFailed(AssertionError):
    """The result of a case differs from what the case states."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What happened: the outcome of the call, what ``evaluate`` said before it, the guard, and the
    session that the call was made in.
    """

    outcome: ToolOutcome
    evaluation: EvaluationResult
    guard: Edictum
    session_id: str = _SESSION_ID

    @property
    def decision(self) -> str:
        if self.evaluation.needs_approval:
            return "approve"
        return "deny" if isinstance(self.outcome, ToolDenied) else "allow"

    @property
    def would_deny(self) -> list[str]:
        events = self.guard.local_sink.filter("call_would_deny")
        return [str(event.decision_name) for event in events]


def _reason_of(seen: Observed) -> str | None:
    if isinstance(seen.outcome, ToolDenied):
        return seen.outcome.details
    return seen.outcome.success_reason if isinstance(seen.outcome, ToolFailure) else None


def _has_policy_error(seen: Observed) -> bool:
    if isinstance(seen.outcome, (ToolDenied, ToolFailure)) and seen.outcome.policy_error:
        return True
    return bool(seen.guard.local_sink.last().policy_error)


def _counts_of(seen: Observed) -> dict[str, int]:
    session = seen.guard.session(seen.session_id)
    return {name: int(getattr(session, name)) for name in COUNTS}


WANTS: dict[str, Callable[[Observed], Any]] = {
    "decision": lambda seen: seen.decision,
    "contract": lambda seen: getattr(seen.outcome, "decision_name", None),
    "reason": _reason_of,
    "policy_error": _has_policy_error,
    "outcome": lambda seen: outcome_kind(seen.outcome),
    "value": lambda seen: getattr(seen.outcome, "value", None),
    "success": lambda seen: outcome_kind(seen.outcome) == "executed",
    "success_source": lambda seen: getattr(seen.outcome, "success_source", None),
    "findings": lambda seen: [it.contract_id for it in getattr(seen.outcome, "findings", ())],
    "would_deny": lambda seen: seen.would_deny,
    "counts": _counts_of,
    "mode": lambda seen: seen.guard.mode,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One case; ``check`` raises CaseFailed with every difference."""

    note: str
    data: Mapping[str, Any]
    directory: Path
    shared: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.note

    def check(self) -> None:
        if problems := self.problems():
            raise CaseFailed(f"{self.note}:\n  " + "\n  ".join(problems))

    def problems(self) -> list[str]:
        """Return every difference between the result and the case."""
        want: Mapping[str, Any] = self.data["want"]
        if "load_error" in want:
            return self._load_problems(str(want["load_error"]))
        with _environment(self.data.get("env", {})):
            seen = self.run()
        problems = [
            f"{name}: wanted {wanted!r}, got {got!r}"
            for name, wanted in want.items()
            if (got := WANTS[name](seen)) != wanted
            and not (name == "counts" and wanted.items() <= got.items())
        ]
        if seen.evaluation.verdict == "deny" and seen.decision == "allow":
            problems.append("evaluate() says deny, and run() allows")
        if seen.decision == "deny" and seen.evaluation.verdict != "deny":
            problems.append(f"evaluate() says {seen.evaluation.verdict}, and run() denies")
        return problems

    def _load_problems(self, wanted: str) -> list[str]:
        try:
            self.guard()
        except EdictumConfigError as exc:
            return [] if wanted in str(exc) else [f"load_error: wanted {wanted!r} in: {exc}"]
        return [f"load_error: wanted {wanted!r}, and the bundle loads"]

    def run(self) -> Observed:
        """Make the calls of the case; return what happened to the last one."""
        clock = FakeClock(_start_of(self.data))  # time passes only when the case says so
        waits = any("wait" in earlier for earlier in self.data.get("session", ()))
        person = _Person()
        more: dict[str, Any] = {"backend": MemoryLedger(clock=clock.now)} if waits else {}
        if "now" in self.data:
            more["clock"] = clock
        if any("approval" in made for made in (self.data, *self.data.get("session", ()))):
            more["approval_backend"] = InMemoryApprovalBackend(person.decide)
        guard = self.guard(**more)
        for earlier in self.data.get("session", ()):
            if "wait" in earlier:
                clock.advance(earlier["wait"])
                continue
            for _ in range(earlier.get("times", 1)):
                person.dispatch(guard, earlier, earlier)
        call = self.data.get("call", {})
        output = {"output": self.data["result"]} if "result" in self.data else {}
        evaluation = guard.evaluate(**_read_call(call), **output)
        guard.local_sink.clear()
        outcome = person.dispatch(guard, call, self.data)
        return Observed(outcome, evaluation, guard, call.get("session_id", _SESSION_ID))

    def guard(self, **more: Any) -> Edictum:
        """Return a guard with the bundle of the case."""
        layers = [self._to_yaml(layer) for layer in self._layers()]
        options: dict[str, Any] = {**self.options, **more}
        if "mode" in self.data:
            options["mode"] = self.data["mode"]
        return Edictum.from_yaml_string(*layers, **options)

    def _layers(self) -> list[Any]:
        bundle = self.data.get("bundle", self.shared) or {}
        if "when" in self.data:
            bundle = _one_contract(self.data)
        layers = bundle if isinstance(bundle, list) else [bundle]
        extra = {name: self.data[name] for name in ("success", "tools") if name in self.data}
        return layers if not extra else [*layers[:-1], {**layers[-1], **extra}]

    def _to_yaml(self, layer: Any) -> str | bytes:
        """Return a layer as YAML; a path is read, a mapping may leave out the head of a bundle."""
        if isinstance(layer, Mapping):
            return json.dumps({**HEAD, **layer})
        return str(layer) if "\n" in str(layer) else (self.directory / str(layer)).read_bytes()


def _start_of(data: Mapping[str, Any]) -> float:
    """Return the time of a case's calls: ``now``, in UTC unless it states its offset."""
    stated = datetime.fromisoformat(str(data.get("now", "2001-09-09T01:46:40")))
    return (stated if stated.tzinfo else stated.replace(tzinfo=UTC)).timestamp()


def _one_contract(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a bundle with one contract, which denies, or warns when it reads the result."""
    after = any(word in json.dumps(data["when"]) for word in ('"result', '"output'))
    then = {"effect": "warn" if after else "deny", "message": "The condition holds."}
    contract = {"id": "when", "type": "post" if after else "pre", "tool": "*", "then": then}
    return {"contracts": [{**contract, "when": data["when"]}]}


def _read_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``dispatch_sync`` and ``evaluate`` are given alike."""
    options = {name: call[name] for name in OPTIONS_OF_CALLS if name in call}
    if "principal" in call:
        options["principal"] = Principal(**call["principal"])
    asked = {"tool_name": call.get("tool", "tool"), "args": call.get("args", {})}
    return {"session_id": _SESSION_ID, **asked, **options}


class _Person:
    """Makes the calls of a case, and answers for each as the case says."""

    def __init__(self) -> None:
        self._approval: Any = None

    def dispatch(
        self, guard: Edictum, call: Mapping[str, Any], body: Mapping[str, Any]
    ) -> ToolOutcome:
        def tool(**_args: Any) -> Any:
            if "error" in body:
                raise RuntimeError(body["error"])
            return body.get("result")

        self._approval = body.get("approval", ApprovalStatus.TIMEOUT)
        return guard.dispatch_sync(fn=tool, **_read_call(call))

    def decide(self, _request: ApprovalRequest) -> ApprovalDecision:
        said = self._approval
        said = said if isinstance(said, Mapping) else {"answer": said}
        status = ApprovalStatus(said["answer"])
        approved = status is ApprovalStatus.APPROVED
        return ApprovalDecision(approved, said.get("approver"), said.get("reason"), status)


@contextmanager
def _environment(variables: Mapping[str, Any]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- Files ----------------------------------------------------------------------------------------


def load_cases(*paths: str | os.PathLike[str], **options: Unpack[BundleOptions]) -> list[Case]:
    """Return the cases of files, or of all ``*.yaml`` in directories. Options go to the guard."""
    files = [
        file
        for path in map(Path, paths)
        for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])
    ]
    cases = [case for file in files for case in _read_file(file, options)]
    if not cases:
        hint = "Pass files with cases, or a directory of them."
        raise EdictumConfigError(f"No cases in {', '.join(map(str, paths))}.", hint=hint)
    (note, times), *_ = Counter(case.note for case in cases).most_common(1)
    if times > 1:
        hint = "Give each case a note of its own."
        raise EdictumConfigError(f"Two cases have the note '{note}'.", hint=hint)
    return cases


def _read_file(path: Path, options: Mapping[str, Any]) -> list[Case]:
    tree, problems = load_yaml(path.read_bytes(), str(path), max_bytes=MAX_CASES_BYTES)
    cases = CaseChecker(problems, WANTS).check_file(tree)
    problems.raise_if_any()
    content = to_plain(tree)
    shared = content.get("bundle") if isinstance(content, dict) else None
    plain = map(to_plain, cases)
    return [Case(data["note"], data, path.parent, shared, options) for data in plain]


def run_cases(*paths: str | os.PathLike[str], **options: Unpack[BundleOptions]) -> list[str]:
    """Return the problems of all cases, as lines of text; an empty list when all hold."""
    lines = []
    for case in load_cases(*paths, **options):
        try:
            lines += [f"{case.note}: {problem}" for problem in case.problems()]
        except EdictumError as exc:
            lines.append(f"{case.note}: {exc}")
    return lines
