"""Where a secret stands in a call, and where it must not be seen: one table.

Rows are the places that a secret comes in by, columns those where somebody could read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest

from edictum import (
    Edictum,
    InMemoryApprovalBackend,
    LocalApprovalBackend,
    Principal,
    Verdict,
    outcome_to_model_content,
    precondition,
)
from edictum.harness import ArtifactStore
from support.guards import approval_contract
from support.secret_samples import POSITIONS

SECRET = "ghp_" + "a1B2" * 9
CORE = "a1B2a1B2"
HIDE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: hide}
contracts:
  - {id: hide, type: post, tool: "*", redact: secrets}
"""


def nest(value: Any, levels: int = 100) -> Any:
    for number in range(levels):
        value = {"in": value} if number % 2 else [value]
    return value


@dataclass
class Note:
    text: str


SHAPES: dict[str, Callable[[str], Any]] = {
    **POSITIONS,
    "nested 100 levels": nest,
    "list of lists": lambda secret: [[1, [secret]]],
    "tuple": lambda secret: (secret, 1),
    "set": lambda secret: {secret},
    "key": lambda secret: {secret: 1},
    "key in a list": lambda secret: [{secret: {"a": 1}}],
    "bytes": lambda secret: secret.encode(),
    "dataclass": lambda secret: Note(secret),
    "under a sensitive key": lambda secret: {"password": secret},
}


def audit_of(guard: Edictum) -> str:
    return "".join(json.dumps(event.to_dict()) for event in guard.local_sink.events)


# --- What comes in by the arguments ---------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_arguments_in_the_audit(shape: str) -> None:
    """The name of the argument is still there."""
    guard = Edictum()
    guard.dispatch_sync("t", {"x": SHAPES[shape](SECRET)}, lambda x: "done")
    assert CORE not in audit_of(guard)
    assert '"x"' in audit_of(guard)


@pytest.mark.parametrize("shape", SHAPES)
def test_arguments_before_a_person(shape: str) -> None:
    """On the terminal that asks."""
    screen = StringIO()
    backend = LocalApprovalBackend(stdin=StringIO("n\n"), stdout=screen)
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    guard.dispatch_sync("t", {"x": SHAPES[shape](SECRET)}, lambda x: "done")
    assert "Approve?" in screen.getvalue()
    assert CORE not in screen.getvalue() + audit_of(guard)


@pytest.mark.parametrize("shape", SHAPES)
def test_arguments_that_are_refused(shape: str) -> None:
    """A contract on all arguments, in a bundle; nothing of the secret is said."""
    bundle = HIDE + (
        "  - {id: no, type: pre, tool: t, when: {args: {contains_secret: true}},"
        " then: {effect: deny, message: 'It holds a secret: {args.x}'}}\n"
    )
    guard = Edictum.from_yaml_string(bundle)
    outcome = guard.dispatch_sync("t", {"x": SHAPES[shape](SECRET)}, lambda x: "ran")
    assert outcome.decision_name == "no"  # type: ignore[union-attr]  # a denial
    told = outcome_to_model_content(outcome) + audit_of(guard)
    assert CORE not in told + str(guard.explain("t", {"x": SHAPES[shape](SECRET)}))


# --- What comes in by the result ------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_results_in_the_audit(shape: str) -> None:
    """Without any contract."""
    guard = Edictum()
    guard.dispatch_sync("t", {}, lambda: SHAPES[shape](SECRET))
    assert CORE not in audit_of(guard)


@pytest.mark.parametrize("effect", ["redact", "mask", "hash", "suppress"])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_before_the_model(shape: str, effect: str) -> None:
    """With each effect that takes something out."""
    then = f"{{effect: {effect}, message: It held secrets.}}"
    bundle = HIDE.replace("redact: secrets}", f"redact: secrets, then: {then}}}")
    guard = Edictum.from_yaml_string(bundle)
    outcome = guard.dispatch_sync("t", {}, lambda: SHAPES[shape](SECRET))
    told = outcome_to_model_content(outcome) + repr(outcome) + audit_of(guard)
    assert CORE not in told
    assert "It held secrets." in told


@pytest.mark.parametrize("shape", SHAPES)
def test_results_of_failures(shape: str) -> None:
    """Without any contract."""
    guard = Edictum(success_check=lambda tool, result: False)
    outcome = guard.dispatch_sync("t", {}, lambda: SHAPES[shape](SECRET))
    assert CORE not in outcome_to_model_content(outcome) + repr(outcome) + audit_of(guard)


@pytest.mark.parametrize("position", POSITIONS)
def test_artifacts(position: str) -> None:
    """In what is stored and in what is told about it."""
    store = ArtifactStore()
    content = {"text": POSITIONS[position](SECRET)}
    reference = store.store("s", content, "t")
    assert CORE not in repr(reference) + str(store.retrieve(reference.artifact_id, "s"))


# --- What comes in otherwise ----------------------------------------------------------------------


@pytest.mark.parametrize("position", POSITIONS)
def test_exceptions(position: str) -> None:
    """The type of the exception is still told."""

    def fail() -> None:
        raise ValueError(POSITIONS[position](SECRET))

    guard = Edictum()
    outcome = guard.dispatch_sync("t", {}, fail)
    told = outcome_to_model_content(outcome)
    assert CORE not in told + audit_of(guard)
    assert "ValueError" in audit_of(guard)


@pytest.mark.parametrize("position", POSITIONS)
def test_reasons(position: str) -> None:
    """Of a contract that denies."""
    said = POSITIONS[position](SECRET)
    guard = Edictum(contracts=[precondition("*", id="no")(lambda call: Verdict.fail(said))])
    guard.dispatch_sync("t", {}, lambda: 1)
    assert CORE not in audit_of(guard)


@pytest.mark.parametrize("position", POSITIONS)
def test_principals(position: str) -> None:
    """In names, claims and their keys."""
    said = POSITIONS[position](SECRET)
    guard = Edictum(principal=Principal(user_id=said, claims={"a": [said], said: 1}))
    guard.dispatch_sync("t", {}, lambda: 1)
    assert CORE not in audit_of(guard)


@pytest.mark.parametrize("position", POSITIONS)
def test_answers_of_people(position: str) -> None:
    """In what they are asked."""
    ask = approval_contract(message=POSITIONS[position](SECRET))
    guard = Edictum(contracts=[ask], approval_backend=InMemoryApprovalBackend(False))
    guard.dispatch_sync("t", {}, lambda: 1)
    assert CORE not in audit_of(guard)


# --- What spans say -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_spans(shape: str) -> None:
    """Arguments, results, reasons and errors in spans, in processes that put content into them."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from edictum.otel import configure_otel, disable_otel

    value, spans, provider = SHAPES[shape](SECRET), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))

    @precondition("quoting")
    def quote(call: Any) -> Verdict:
        return Verdict.fail(f"not with {call.args}")

    def fail(value: Any) -> Any:
        raise ValueError(f"cannot read {value}")

    configure_otel(tracer_provider=provider, record_content=True)
    try:
        guard = Edictum(contracts=[quote])
        guard.dispatch_sync("returning", {"value": value}, lambda value: value)
        guard.dispatch_sync("quoting", {"value": value}, lambda value: value)
        guard.dispatch_sync("failing", {"value": value}, fail)
    finally:
        disable_otel()
    written = [span.to_json() for span in spans.get_finished_spans()]
    assert [json.loads(it)["name"] for it in written] == [
        f"execute_tool {name}" for name in ("returning", "quoting", "failing")
    ]
    assert CORE not in "".join(written)
