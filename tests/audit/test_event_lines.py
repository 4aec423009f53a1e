"""The line of an event and the event itself: one content, written once, shared with nobody."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import (
    AuditEvent,
    CompositeSink,
    Edictum,
    FileAuditSink,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    RedactionPolicy,
    StdoutAuditSink,
    Verdict,
    postcondition,
    precondition,
)
from edictum.audit import verify_evidence
from edictum.audit.chain import canonicalize, write_canonical
from edictum.audit.sinks import emitter_of, takes_entries
from edictum.core.events import Entry
from edictum.core.freeze import freeze_args
from edictum.core.redaction import MAX_NAMES
from edictum.testing import RecordingSink

NAMES = [field.name for field in dataclasses.fields(AuditEvent)]


class Entries:
    """Keeps entries as they come."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    @takes_entries
    def emit(self, event: Any) -> None:
        self.entries.append(event)


def fail(**args: Any) -> None:
    raise ValueError("boom password=hunter2")


def deny(call: Any) -> Verdict:
    return Verdict.fail("no: export API_KEY=x1", found=["a", {"token": "hunter2"}])


def object_to(call: Any, result: Any) -> Verdict:
    return Verdict.fail("odd result", field="output")


GUARDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two contracts": {
        "contracts": [
            precondition("*", id=f"c-{n}", tags=["t"], metadata={"why": {"n": n}})(
                lambda call: Verdict.pass_()
            )
            for n in range(2)
        ]
    },
    "denied": {"contracts": [precondition("*", id="no")(deny)]},
    "observed": {"contracts": [precondition("*", id="no")(deny)], "mode": "observe"},
    "asked": {
        "contracts": [precondition("*", id="no", effect="approve")(deny)],
        "approval_backend": InMemoryApprovalBackend(True),
    },
    "refused": {
        "contracts": [precondition("*", id="no", effect="approve")(deny)],
        "approval_backend": InMemoryApprovalBackend(False),
    },
    "judged": {"contracts": [postcondition("*", id="odd")(object_to)]},
    "hooked": {
        "hooks": [HookRegistration("before", "*", lambda c: HookDecision.rewrite({"x": 1}))]
    },
    "limited": {"limits": OperationLimits(max_tool_calls=0)},
    "principal": {
        "principal": Principal(user_id="u", claims={"token": "hunter2", "n": [1.5, None]}),
        "policy_version": "v7",
        "environment": "stag\u00efng",
    },
    "bad check": {"success_check": lambda tool, result: 1 / 0},
}
anything = st.text(st.characters())  # halves of surrogate pairs as well
keys = anything | st.integers() | st.floats() | st.booleans() | st.none()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | anything | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


def take_distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON that has no member twice."""
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


@pytest.mark.parametrize("name", GUARDS)
@given(args=st.dictionaries(st.text(), values, max_size=3), result=values, raises=st.booleans())
def test_a_line_is_the_event_with_its_fields_sorted(
    name: str, args: Any, result: Any, raises: bool
) -> None:
    """For every way a call can go."""
    sink = Entries()
    guard = Edictum(audit_sink=sink, **GUARDS[name])
    guard.dispatch_sync("t", args, fail if raises else lambda **given: result)
    assert sink.entries
    for entry in sink.entries:
        line, event = entry.to_json(), entry.event()
        assert [*json.loads(line)] == sorted(NAMES)
        assert json.loads(line) == json.loads(json.dumps(event.to_dict()))
        assert line == event.to_json()
        canonical = write_canonical(json.loads(line, object_pairs_hook=take_distinct))
        assert canonicalize(line, is_exact=entry.has_exact_numbers()) == canonical
        assert verify_evidence._to_canonical(json.loads(canonical)) == canonical
        assert "hunter2" not in line
        assert "\n" not in line
    assert guard.local_sink.events == [entry.event() for entry in sink.entries]


def test_the_events_of_a_call_share_their_texts_but_no_data() -> None:
    """Who changes one event changes no other."""
    sink = Entries()
    guard = Edictum(audit_sink=sink, principal=Principal(user_id="u"))
    guard.run_sync("t", {"rows": [1]}, lambda rows: rows)
    first, second = (entry.event() for entry in sink.entries)
    assert first.tool_args == second.tool_args == {"rows": [1]}
    first.tool_args["rows"].append(2)
    first.principal["user_id"] = "other"  # type: ignore[index]
    first.contracts_evaluated.append({})
    assert (second.tool_args, second.contracts_evaluated) == ({"rows": [1]}, [])
    assert second.principal is not None
    assert second.principal["user_id"] == "u"
    assert json.loads(sink.entries[0].to_json())["tool_args"] == {"rows": [1]}


def test_calls_at_once_are_not_mixed_up() -> None:
    """More of them than texts are remembered."""
    sink = RecordingSink(asynchronous=True)
    guard = Edictum(audit_sink=sink, limits=OperationLimits(max_attempts=None, max_tool_calls=None))

    async def tool(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def main() -> None:
        await asyncio.gather(
            *(guard.run("t", {"number": n}, tool, call_id=f"c-{n}") for n in range(1_500))
        )

    asyncio.run(main())
    assert len(sink.events) == 3_000
    for event in sink.events:
        assert event.call_id == f"c-{event.tool_args['number']}"
        assert event.result_summary in (None, str(event.tool_args["number"]))


def test_a_sink_that_overrides_emit_gets_events(tmp_path: Path) -> None:
    """As it did before there were lines."""
    got: list[Any] = []

    class Counting(FileAuditSink):
        def emit(self, event: Any) -> None:
            got.append(event)
            super().emit(event)

    sink = Counting(tmp_path / "audit.jsonl")
    Edictum(audit_sink=sink).run_sync("t", {}, lambda: 1)
    sink.close()
    assert [type(event) for event in got] == [AuditEvent, AuditEvent]
    assert [json.loads(line) for line in sink.path.read_text().splitlines()] == [
        event.to_dict() for event in got
    ]


def test_several_sinks_share_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless one redacts more."""
    kept, recorded = Entries(), RecordingSink()
    file = FileAuditSink(tmp_path / "audit.jsonl")
    own = FileAuditSink(tmp_path / "own.jsonl", RedactionPolicy(sensitive_keys=["path"]))
    composite = CompositeSink([kept, file, own, recorded, StdoutAuditSink()])
    Edictum(audit_sink=composite).run_sync("t", {"path": "/x"}, lambda path: path)
    file.close()
    own.close()
    lines = [entry.to_json() for entry in kept.entries]
    assert file.path.read_text().splitlines() == lines
    assert capsys.readouterr().out.splitlines() == lines
    assert [event.to_json() for event in recorded.events] == lines
    assert all(
        json.loads(line)["tool_args"] == {"path": "[REDACTED]"}
        for line in own.path.read_text().splitlines()
    )
    assert kept.entries[0].to_json() is lines[0]


def test_a_sink_may_be_given_an_event_by_hand() -> None:
    """Without a guard."""
    sink = Entries()
    emitter_of(sink)(AuditEvent(tool_name="t"))
    assert json.loads(sink.entries[0].to_json())["tool_name"] == "t"


# --- Flat arguments, which are written without a second copy --------------------------------------

names = st.sampled_from(["path", "password", "api_key=hunter2", "n", "é", 'q"', "k" * 300])
texts = st.sampled_from(["a.txt", "password=hunter2", "%41%42", "é\n", "x" * 400]) | st.text(
    max_size=600
)
numbers = st.integers() | st.floats() | st.booleans() | st.none() | st.just(2**80)
policies = st.sampled_from(
    [
        RedactionPolicy(),
        RedactionPolicy(detect_secret_values=False),
        RedactionPolicy(custom_patterns=[("a", "b")]),
        RedactionPolicy(sensitive_keys=["path"], safe_keys=["password"]),
    ]
)


@given(policies, st.dictionaries(names | st.text(max_size=8), texts | numbers, max_size=25))
def test_arguments_are_written_as_they_are_redacted(
    policy: RedactionPolicy, args: dict[str, Any]
) -> None:
    """The short way gives the same text as the long one, whatever the names and values are."""
    shown = policy.redact_args(args)
    wanted = json.dumps(shown, sort_keys=True, separators=(",", ":"))
    assert policy.write_args(freeze_args(args)) == wanted
    assert policy.write_args(freeze_args(args)) == wanted  # the names are known now


def test_names_that_are_not_remembered_are_written_all_the_same() -> None:
    """A model can invent any number of names; a thousand are remembered."""
    policy = RedactionPolicy()
    for number in range(MAX_NAMES + 2):
        assert policy.write_args(freeze_args({f"n{number}": 1})) == f'{{"n{number}":1}}'
