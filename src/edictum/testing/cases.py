"""Cases: what contracts must do, written down as data.

A file of cases is YAML: a list, or a mapping with ``cases`` and a ``bundle`` that all of them
share. Each case says what is called and what must come of it::

    bundle: contracts.yaml            # a file beside this one, or a bundle written out, or a list
    of layers
    cases:
      - note: files/env-is-denied     # unique; a path, so that cases can be selected by it
        call: {tool: read_file, args: {path: /srv/.env}}
        want: {decision: deny, contract: no-env}
      - note: files/others-are-read
        call: {tool: read_file, args: {path: /srv/readme}}
        result: hello                 # what the tool returns; `error: text` makes it raise
        want: {decision: allow, value: hello}

``session`` is a list of calls that were made before, each with ``tool``, ``args``, ``result`` or
``error``, and ``times``; in it ``{wait: 61}`` lets 61 seconds pass, for limits with a window.
``when`` stands for a bundle with one contract: ``when: {args.n: {gt: 5}}`` denies, or, when the
case has a ``result`` and looks at it, warns. ``mode``, ``env`` (environment variables) and
``success`` (rules) may be given as well.

With pytest::

    @pytest.mark.parametrize("case", load_cases("tests/cases.yaml"), ids=str)
    def test_case(case):
        case.check()
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from edictum.contracts.load import load_yaml
from edictum.contracts.tree import to_plain
from edictum.core.call import Principal
from edictum.errors import EdictumConfigError, EdictumError
from edictum.evaluation import EvaluationResult
from edictum.factories import BundleOptions
from edictum.guard import Edictum
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure, ToolOutcome, outcome_kind
from edictum.sessions.memory import MemoryLedger

MAX_BYTES = 16 << 20
CASE_KEYS = frozenset(
    (
        "note",
        "bundle",
        "when",
        "success",
        "tools",
        "mode",
        "call",
        "session",
        "result",
        "error",
        "env",
        "want",
    )
)
HEAD = {"apiVersion": "edictum/v1", "kind": "ContractBundle", "metadata": {"name": "case"}}
SESSION = "case"


class CaseFailed(AssertionError):
    """A case did not come out as it says."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What happened: the outcome of the call, what ``evaluate`` said before it, and what the audit
    has.
    """

    outcome: ToolOutcome
    evaluation: EvaluationResult
    guard: Edictum

    @property
    def decision(self) -> str:
        if self.evaluation.needs_approval:
            return "approve"
        return "deny" if isinstance(self.outcome, ToolDenied) else "allow"

    @property
    def would_deny(self) -> list[str]:
        events = self.guard.local_sink.filter("call_would_deny")
        return [str(event.decision_name) for event in events]


def _contract(seen: Observed) -> str | None:
    return seen.outcome.decision_name if isinstance(seen.outcome, ToolDenied) else None


def _reason(seen: Observed) -> str | None:
    match seen.outcome:
        case ToolDenied():
            return seen.outcome.details
        case ToolFailure():
            return seen.outcome.success_reason
        case _:
            return None


def _policy_error(seen: Observed) -> bool:
    if isinstance(seen.outcome, (ToolDenied, ToolFailure)) and seen.outcome.policy_error:
        return True
    return bool(seen.guard.local_sink.last().policy_error)


def _value(seen: Observed) -> Any:
    return (
        seen.outcome.value if isinstance(seen.outcome, (ToolExecutionResult, ToolFailure)) else None
    )


def _findings(seen: Observed) -> list[str]:
    return [finding.contract_id for finding in getattr(seen.outcome, "findings", ())]


def _counts(seen: Observed) -> dict[str, int]:
    session = seen.guard.session(SESSION)
    return {
        name: int(getattr(session, name))
        for name in ("attempts", "executions", "successes", "failures", "consecutive_failures")
    }


WANTS: dict[str, Callable[[Observed], Any]] = {
    "decision": lambda seen: seen.decision,
    "contract": _contract,
    "reason": _reason,
    "policy_error": _policy_error,
    "outcome": lambda seen: outcome_kind(seen.outcome),
    "value": _value,
    "success": lambda seen: outcome_kind(seen.outcome) == "executed",
    "success_source": lambda seen: getattr(seen.outcome, "success_source", None),
    "findings": _findings,
    "would_deny": lambda seen: seen.would_deny,
    "counts": _counts,
    "mode": lambda seen: seen.guard.mode,
}


@dataclass(slots=True)
class _Clock:
    """The time of a case, in seconds. It passes only when the case says so."""

    now: float = 1_000.0


@dataclass(frozen=True, slots=True)
class Case:
    """One case. ``check`` raises CaseFailed with everything that came out otherwise."""

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
        """What came out otherwise than the case says; nothing when all is well."""
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
        """Make the calls of the case, and see what happens to the last one."""
        clock = _Clock()
        guard = self.guard(**self._timed(clock))
        for earlier in self.data.get("session", ()):
            if "wait" in earlier:
                clock.now += earlier["wait"]
                continue
            for _ in range(earlier.get("times", 1)):
                _dispatch(guard, earlier, earlier)
        evaluation = _evaluate(guard, self.data.get("call", {}), self.data)
        guard.local_sink.clear()
        return Observed(_dispatch(guard, self.data.get("call", {}), self.data), evaluation, guard)

    def _timed(self, clock: _Clock) -> dict[str, Any]:
        """A case that lets time pass has counters whose time is its own."""
        waits = any("wait" in earlier for earlier in self.data.get("session", ()))
        return {"backend": MemoryLedger(clock=lambda: clock.now)} if waits else {}

    def guard(self, **more: Any) -> Edictum:
        layers = [self._layer(layer) for layer in self._layers()]
        options: dict[str, Any] = {
            **self.options,
            **more,
            **({"mode": self.data["mode"]} if "mode" in self.data else {}),
        }
        return Edictum.from_yaml_string(*layers, **options)

    def _layers(self) -> list[Any]:
        if "when" in self.data:
            return [_one_contract(self.data)]
        bundle = self.data.get("bundle", self.shared)
        if bundle is None:
            bundle = {}
        layers = bundle if isinstance(bundle, list) else [bundle]
        extra = {name: self.data[name] for name in ("success", "tools") if name in self.data}
        return layers if not extra else [*layers[:-1], {**layers[-1], **extra}]

    def _layer(self, layer: Any) -> str | bytes:
        """A layer as YAML. A path is read; a mapping may leave out the head of a bundle."""
        if isinstance(layer, Mapping):
            return json.dumps({**HEAD, **layer})
        return str(layer) if "\n" in str(layer) else (self.directory / str(layer)).read_bytes()


def _one_contract(data: Mapping[str, Any]) -> dict[str, Any]:
    """A bundle with one contract for every tool: it denies, or warns when the condition looks at
    the result.
    """
    after = any(word in json.dumps(data["when"]) for word in ('"result', '"output'))
    then = {"effect": "warn" if after else "deny", "message": "The condition holds."}
    contract = {
        "id": "when",
        "type": "post" if after else "pre",
        "tool": "*",
        "when": data["when"],
        "then": then,
    }
    return {
        "contracts": [contract],
        **{name: data[name] for name in ("success", "tools") if name in data},
    }


def _call_options(call: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: call[name] for name in ("environment", "metadata") if name in call}
    if "principal" in call:
        options["principal"] = Principal(**call["principal"])
    return {**options, "session_id": SESSION}


def _dispatch(guard: Edictum, call: Mapping[str, Any], body: Mapping[str, Any]) -> ToolOutcome:
    def tool(**_args: Any) -> Any:
        if "error" in body:
            raise RuntimeError(body["error"])
        return body.get("result")

    return guard.dispatch_sync(
        call.get("tool", "tool"), call.get("args", {}), tool, **_call_options(call)
    )


def _evaluate(guard: Edictum, call: Mapping[str, Any], body: Mapping[str, Any]) -> EvaluationResult:
    output = {"output": body["result"]} if "result" in body else {}
    return guard.evaluate(
        call.get("tool", "tool"), call.get("args", {}), **output, **_call_options(call)
    )


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
    """The cases of some files, or of all ``*.yaml`` in some directories. Options are handed to the
    guard: custom operators, say.
    """
    files = [
        file
        for path in map(Path, paths)
        for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])
    ]
    cases = [case for file in files for case in _file(file, options)]
    if not cases:
        raise EdictumConfigError(
            f"No cases in {', '.join(map(str, paths))}.",
            hint="Pass files with cases, or a directory of them.",
        )
    seen: set[str] = set()
    for case in cases:
        if case.note in seen:
            raise EdictumConfigError(
                f"Two cases have the note '{case.note}'.", hint="Give each case a note of its own."
            )
        seen.add(case.note)
    return cases


def _file(path: Path, options: Mapping[str, Any]) -> Iterator[Case]:
    content = to_plain(load_yaml(path.read_bytes(), str(path), max_bytes=MAX_BYTES)[0])
    shared = content.get("bundle") if isinstance(content, dict) else None
    listed = content.get("cases") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise EdictumConfigError(
            f"{path}: there is no list of cases.", hint="Write a list, or a mapping with 'cases:'."
        )
    for number, data in enumerate(listed):
        yield Case(_checked(path, number, data), data, path.parent, shared, options)


def _checked(path: Path, number: int, data: Any) -> str:
    """The note of a case, when the case can be run."""
    where = f"{path}: case {number + 1}"
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("note"), str)
        or not isinstance(data.get("want"), dict)
        or not data["want"]
    ):
        raise EdictumConfigError(
            f"{where} needs a note and what is wanted.",
            hint="Write 'note: ...' and 'want: {decision: deny}'.",
        )
    if unknown := sorted(set(data) - CASE_KEYS):
        raise EdictumConfigError(
            f"{where}: unknown key '{unknown[0]}'.",
            hint=f"Known keys: {', '.join(sorted(CASE_KEYS))}.",
        )
    if unknown := sorted(set(data["want"]) - set(WANTS) - {"load_error"}):
        raise EdictumConfigError(
            f"{where}: nobody knows how to look at '{unknown[0]}'.",
            hint=f"Known: {', '.join(WANTS)}, load_error.",
        )
    note: str = data["note"]
    return note


def run_cases(*paths: str | os.PathLike[str], **options: Unpack[BundleOptions]) -> list[str]:
    """The problems of all cases, as lines of text; an empty list when all of them hold."""
    lines = []
    for case in load_cases(*paths, **options):
        try:
            lines += [f"{case.note}: {problem}" for problem in case.problems()]
        except EdictumError as exc:
            lines.append(f"{case.note}: {exc}")
    return lines
