"""Evidence: what is written, and that another machine can verify it without this library."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edictum import AuditEvent, Edictum, EdictumConfigError, FileAuditSink
from edictum.approval import ApprovalDecision
from edictum.audit import Chain, generate_key, query, verify_evidence, write_evidence
from edictum.audit.chain import write_canonical

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: example}
defaults: {mode: enforce}
contracts:
  - id: ask-first
    type: pre
    tool: refund
    when: {args.amount: {gt: 100}}
    then: {effect: approve, message: "Pay back {args.amount}?"}
"""


class Ann:
    """Says yes to everything."""

    async def request_approval(
        self, tool_name: str, tool_args: Any, message: str, **more: Any
    ) -> Any:
        from edictum.approval import ApprovalRequest

        return ApprovalRequest("ask-1", tool_name, tool_args, message, timeout=60)

    async def wait_for_decision(self, approval_id: str, timeout: float | None = None) -> Any:
        return ApprovalDecision(approved=True, approver="ann")


@dataclass(frozen=True)
class Case:
    """A log of four refunds, one of which was asked for, and evidence of one session."""

    log: Path
    evidence: Path
    public_key: Path
    policy: Path

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        data = json.loads(self.evidence.read_text())
        change(data)
        self.evidence.write_text(write_canonical(data))

    def check(self, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
        given = [str(self.evidence), *(more or ("--public-key", str(self.public_key)))]
        code = verify_evidence.verify_file(given)
        return code, capsys.readouterr().out


@pytest.fixture
def case(tmp_path: Path) -> Case:
    public = generate_key(tmp_path / "key")
    policy = tmp_path / "rules.yaml"
    policy.write_text(BUNDLE)
    log, evidence = tmp_path / "audit.jsonl", tmp_path / "evidence.json"
    chain = Chain(key=tmp_path / "key", head_events=3)
    with closing(FileAuditSink(log, chain=chain)) as sink:
        guard = Edictum.from_yaml(policy, audit_sink=sink, approval_backend=Ann())
        for number, amount in enumerate((10.5, 500, 20, 30)):
            call = {"session_id": f"s{number}"}
            guard.run_sync("refund", {"amount": amount}, lambda amount: "paid", **call)
    signed = {"public_key": public, "key": tmp_path / "key"}
    write_evidence(log, evidence, policies=[policy], **signed, session="s1")
    return Case(log, evidence, public, policy)


def test_evidence_has_the_events_what_was_shown_and_the_policy(case: Case) -> None:
    """Of one session: its events, the question and the answer, and the bundle's text."""
    data = json.loads(case.evidence.read_text())
    records = {record["_chain"]["hash"]: record for record in map(json.loads, data["records"])}
    events = [records[digest] for digest in data["selected"]]
    assert {event["session_id"] for event in events} == {"s1"}
    assert [event["action"] for event in events] == [
        event["action"] for event in query(case.log, session="s1")
    ]
    assert data["policies"] == [{"texts": [BUNDLE], "version": events[0]["policy_version"]}]
    (approval,) = data["approvals"]
    assert approval["shown"]["reason"] == "Pay back 500?"
    assert approval["shown"]["tool_args"] == {"amount": 500}
    assert approval["answers"][0]["approver"] == "ann"
    assert case.evidence.read_text() == write_canonical(data)


def test_evidence_is_verified_by_a_program_of_its_own(case: Case, tmp_path: Path) -> None:
    """Copied to a folder of its own, and run by an interpreter that cannot find this library."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    script = Path(verify_evidence.__file__).read_text()
    hidden = "import sys; sys.modules['edictum'] = None\n"
    (folder / "verify.py").write_text(
        script.replace("import argparse\n", f"{hidden}import argparse\n")
    )
    imports = [line for line in script.splitlines() if line.startswith(("import ", "from "))]
    assert not any("edictum" in line for line in imports)
    command = [
        sys.executable,
        "verify.py",
        str(case.evidence),
        "--public-key",
        str(case.public_key),
    ]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "are proven by" in ran.stdout


def test_a_key_of_the_file_itself_is_said(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a key of the examiner's own, the one in the file is used, and that is printed."""
    assert verify_evidence.verify_file([str(case.evidence)]) == 0
    assert "compare it with one that you trust" in capsys.readouterr().out


def change_record(data: dict[str, Any]) -> None:
    data["records"][0] = data["records"][0].replace('"refund"', '"reward"')


def change_head(data: dict[str, Any]) -> None:
    data["heads"][0] = data["heads"][0].replace('"sequence":', '"sequence":1')


def change_approver(data: dict[str, Any]) -> None:
    data["approvals"][0]["answers"][0]["approver"] = "bob"


def change_question(data: dict[str, Any]) -> None:
    data["approvals"][0]["shown"]["reason"] = "Pay back 5?"


def change_policy(data: dict[str, Any]) -> None:
    data["policies"][0]["texts"][0] += "# more\n"


CHANGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "record": (change_record, "was changed"),
    "head": (change_head, "is not signed with the key"),
    "approver": (change_approver, "the approval ask-1 is not what the records say"),
    "question": (change_question, "the approval ask-1 is not what the records say"),
    "policy": (change_policy, "is another one"),
    "a record less": (lambda data: data["records"].pop(0), "is not in the file"),
    "the last record less": (lambda data: data["records"].pop(), "are listed by no signed head"),
    "records swapped": (lambda data: data["records"].reverse(), "are listed by no signed head"),
    "no head": (lambda data: data["heads"].clear(), "are listed by no signed head"),
    "an event more": (lambda data: data["selected"].append("0" * 64), "is not in the file"),
    "another version": (lambda data: data.update(evidence_version=9), "is not known"),
    "no approvals": (lambda data: data["approvals"].clear(), "part 'approvals' is not the one"),
    "no policies": (lambda data: data["policies"].clear(), "part 'policies' is not the one"),
    "an event less": (lambda data: data["selected"].pop(), "part 'selected' is not the one"),
    "a part less": (lambda data: data.pop("made_at"), "part 'made_at' is not the one"),
    "no signature": (lambda data: data["manifest"].update(signature=""), "may have been taken out"),
    "a digest": (lambda data: data["manifest"]["digests"].update(selected=""), "the manifest is"),
    "no records": (lambda data: data.pop("records"), "not evidence, or was changed"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_evidence_proves_nothing(
    case: Case, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Each part that was changed is named, and the exit code is 1."""
    change, text = CHANGED[name]
    case.edit(change)
    code, told = case.check(capsys)
    assert code == 1
    assert text in told


NOT_EVIDENCE = {
    "nothing": "",
    "another value": "[]",
    "a number that is too large": '{"x":' + "9" * 400 + "}",
    "too deep": "[" * 100_000 + "]" * 100_000,
    "half of a surrogate pair": '{"x":"\\ud800"}',
    "not a number": '{"x":NaN}',
}


@pytest.mark.parametrize("name", NOT_EVIDENCE)
def test_a_file_that_is_not_evidence_is_said(
    case: Case, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """In a sentence, whatever it holds."""
    case.evidence.write_text(NOT_EVIDENCE[name])
    code, told = case.check(capsys)
    assert code == 1
    assert "WRONG: the file is not evidence, or was changed: " in told


def test_a_key_that_cannot_be_used_is_said(
    case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The file is not blamed for it."""
    (tmp_path / "bad.pub").write_text("x")
    code, told = case.check(capsys, "--public-key", str(tmp_path / "bad.pub"))
    assert (code, told.startswith("WRONG: the public key cannot be used: ")) == (1, True)


def test_a_policy_that_is_not_in_the_file_is_said(
    case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The events are proven, but not by which rules they were judged."""
    write_evidence(case.log, case.evidence, key=tmp_path / "key", session="s1")
    code, told = case.check(capsys)
    assert code == 0
    assert re.search(r"The text of the policy [0-9a-f]{64} is not in the file\.", told)


def test_evidence_signed_by_another_key_proves_nothing(
    case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The examiner's key counts, not the one in the file."""
    other = generate_key(tmp_path / "other")
    code, told = case.check(capsys, "--public-key", str(other))
    assert (code, "is not signed with the key" in told) == (1, True)


def test_text_that_is_not_canonical_is_said(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """One byte more than the canonical form is a change."""
    case.evidence.write_text(case.evidence.read_text() + "\n")
    code, told = case.check(capsys)
    assert (code, "not canonical JSON" in told) == (1, True)


def test_events_behind_the_newest_head_are_counted(tmp_path: Path) -> None:
    """They are not proven until a head lists them."""
    public = generate_key(tmp_path / "key")
    chain = Chain(key=tmp_path / "key", head_events=3)
    sink = FileAuditSink(tmp_path / "audit.jsonl", chain=chain)
    for number in range(4):
        sink.emit(AuditEvent(tool_name=f"tool-{number}", policy_version="v1"))
    signed = {"public_key": public, "key": tmp_path / "key"}
    made = write_evidence(sink, tmp_path / "evidence.json", **signed)
    assert (made.selected, made.records, made.unlisted, made.unknown_policies) == (4, 4, 1, ("v1",))
    given = [str(tmp_path / "evidence.json"), "--public-key", str(public)]
    assert verify_evidence.verify_file(given) == 1
    sink.close()
    assert write_evidence(sink, tmp_path / "evidence.json", **signed).unlisted == 0
    assert verify_evidence.verify_file(given) == 0


def test_evidence_without_a_key_is_accepted_only_if_asked_for(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    """It proves what it holds, and not that nothing was taken out."""
    write_evidence(case.log, case.evidence, policies=[case.policy], session="s1")
    code, told = case.check(capsys)
    assert (code, "parts may have been taken out" in told) == (1, True)
    code, told = case.check(capsys, "--public-key", str(case.public_key), "--allow-unsigned")
    assert (code, "parts may have been taken out" in told) == (0, True)


@pytest.mark.parametrize("missing", ["evidence", "public_key"])
def test_a_file_that_is_not_there_is_said(
    case: Case, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    """In a sentence, with exit code 1."""
    getattr(case, missing).unlink()
    code, told = case.check(capsys)
    assert code == 1
    assert told.startswith("WRONG: a file cannot be read: ")


def test_a_policy_of_layers_has_the_version_that_events_have(case: Case, tmp_path: Path) -> None:
    """Several bundles that were in force together have one version."""
    layer = tmp_path / "layer.yaml"
    layer.write_text(BUNDLE.replace("ask-first", "ask-again"))
    with closing(FileAuditSink(case.log, chain=True)) as sink:
        guard = Edictum.from_yaml(case.policy, layer, audit_sink=sink)
        guard.run_sync("look", {}, lambda: 1, session_id="layers")
    made = write_evidence(
        case.log, case.evidence, policies=[[case.policy, layer]], session="layers"
    )
    assert (made.selected, made.unknown_policies) == (2, ())


def test_a_log_that_was_changed_gives_no_evidence(case: Case) -> None:
    """It is refused as soon as a changed record would be part of it."""
    case.log.write_text(case.log.read_text().replace('"s1"', '"s9"', 1))
    with pytest.raises(EdictumConfigError, match="was changed, so it proves nothing"):
        write_evidence(case.log, case.evidence)
    write_evidence(case.log, case.evidence, session="s3")


def test_events_of_no_chain_give_no_evidence(case: Case, tmp_path: Path) -> None:
    """Of a log that is not chained, or of one to which another program has added a line."""
    plain = FileAuditSink(tmp_path / "plain.jsonl")
    Edictum(audit_sink=plain).run_sync("look", {}, lambda: 1, session_id="s9")
    plain.close()
    with case.log.open("ab") as file:
        file.write(plain.path.read_bytes())
    for log in (plain.path, case.log):
        with pytest.raises(EdictumConfigError, match="is in no chain, so nothing proves it"):
            write_evidence(log, case.evidence, session="s9")
    assert write_evidence(case.log, case.evidence, session="s3").selected


def test_a_policy_that_is_not_there_is_said(case: Case, tmp_path: Path) -> None:
    """A file that cannot be read is an error, not a missing policy."""
    with pytest.raises(EdictumConfigError, match="A policy cannot be read"):
        write_evidence(case.log, case.evidence, policies=[tmp_path / "missing"])


DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(min_size=8, max_size=8).map(lambda bits: struct.unpack(">d", bits)[0]).filter(lambda number: number - number == 0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip # one kind of value after the other


@example(5.960464477539063e-08)  # the nearest of two shortest texts
@given(DATA)
def test_the_program_writes_canonical_json_as_the_library_does(data: Any) -> None:
    """The two were written apart; any data is the same to both."""
    assert verify_evidence._to_canonical(data) == write_canonical(data)
