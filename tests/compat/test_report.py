"""``python -m edictum.compat.report``: what in a code base needs a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edictum.compat.report import run_report

FINE = """\
from edictum import Edictum, GovernancePipeline, Principal, create_envelope
from edictum.adapters.semantic_kernel import SemanticKernelAdapter
from edictum.audit import FileAuditSink
from edictum.envelope import ToolEnvelope
from edictum.yaml_engine import compile_contracts, load_bundle
import os.path, json.decoder

guard = Edictum(contracts=[], audit_sink=FileAuditSink("a.jsonl"))
adapter = SemanticKernelAdapter(guard, terminate_on_deny=False)
name = contract._edictum_when
other.claims()
block(rules=1)
"""
BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: example}
defaults: {mode: enforce}
contracts:
  - id: a
    type: pre
    tool: t
    when: {args.a: {soon: 1}}
    then: {effect: deny, message: "No."}
"""
MUST = {
    "from edictum import Decision": "edictum has no Decision. Write Verdict.",
    "from edictum.telemetry import GovernanceTelemetry": "Write configure_otel()",
    "from edictum.rules import Decision": "edictum.rules is not here. Write edictum.contracts.",
    "from edictum.server.backend import ServerBackend": "edictum.server.backend is not here.",
    "import edictum.nowhere.at_all": "edictum.nowhere.at_all is not here. Import from edictum.",
    "from edictum.yaml_engine.evaluator import evaluate_expression": "Write guard.explain",
    "edictum.Edictum(rules=[])": "Write contracts=.",
    "Edictum.from_yaml('a', on_block=f)  # edictum": "Write on_deny=.",
    "edictum.HookDecision.block('no')": "Write HookDecision.deny.",
    "check._edictum_effect = 'redact'": "@postcondition(..., effect=...)",
    "principal.claims['a'] = 1  # edictum": "Make a new Principal.",
    "del principal.claims['a']  # edictum": "Make a new Principal.",
    "edictum.result.block_reasons": "Write deny_reasons.",
}
LOOK = {
    "edictum.OperationLimits(max_attempts=3)": "lets N attempts through",
    "edictum.guard.run('t', {}, tool_callable=f)": "the parameter is called fn here",
    "edictum.event.schema_version == '0.3.0'": "Audit events",
    "edictum.SemanticKernelAdapter(guard)": "Write terminate_on_deny=True to end it.",
    "await pipeline.pre_execute(call, session)  # edictum": "Write guard.begin()",
    "edictum = (": "not Python that can be read",
}


def run(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str]]:
    code = run_report([str(path), *options])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("line", MUST)
def test_what_must_change_is_told_with_its_line(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(f"# a program\n{line}\n")
    code, (told, last) = run(tmp_path, capsys)
    assert told.startswith(f"{tmp_path / 'program.py'}:2: change: ")
    assert MUST[line] in told
    assert (code, last) == (1, "1 to change, 0 to look at")


@pytest.mark.parametrize("line", LOOK)
def test_what_may_mean_something_else_fails_nothing(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(f"{line}\n")
    code, (told, last) = run(tmp_path / "program.py", capsys)
    assert ": look: " in told
    assert LOOK[line] in told
    assert (code, last) == (0, "0 to change, 1 to look at")


def test_what_works_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fine.py").write_text(FINE)
    (tmp_path / "other.py").write_text("from rules import Decision\n")
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    hidden = tmp_path / ".venv"
    hidden.mkdir()
    (hidden / "old.py").write_text("from edictum import Decision\n")
    assert run(tmp_path, capsys) == (0, ["0 to change, 0 to look at"])


def test_bundles_are_read_with_custom_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bundle.yml"
    path.write_text(BUNDLE)
    code, lines = run(tmp_path, capsys)
    assert code == 1
    assert lines[0].startswith(f"{path}:9: change: unknown operator 'soon'")
    assert run(tmp_path, capsys, "--operator", "soon")[0] == 0
    path.write_text(BUNDLE.replace("args.a: {soon: 1}", "ticket.a: {equals: 1}"))
    assert run(tmp_path, capsys)[0] == 1
    assert run(tmp_path, capsys, "--selector", "ticket")[0] == 0
    path.write_text(BUNDLE.replace("defaults: {mode: enforce}", "tools: {}"))
    _, lines = run(tmp_path, capsys, "--operator", "soon")
    assert f"{path}:1: look: 'defaults.mode' is missing, enforce is assumed" in lines[0]
    path.write_text("apiVersion: edictum/v1\n\tkind: x\n")
    assert run(tmp_path, capsys)[0] == 1


def test_it_is_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edictum.compat.report", str(tmp_path / "nothing")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "does not exist" in ended.stderr
