"""Every example of the documents this library was made from runs as printed: copied, with what they
leave out around them.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args

import pytest

from edictum import Edictum, EdictumDenied, EdictumToolError, OperationLimits
from edictum.outcomes import (
    TOOL_MESSAGE_MAX_CHARS,
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    outcome_blocks_tool,
    outcome_is_error,
    outcome_is_retryable,
    outcome_to_model_content,
)
from edictum.success import default_success_check
from support.recipes import db_success_check, http_success_check, unified_success_check

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: seed}
defaults: {mode: enforce}
contracts:
  - id: no-etc
    type: pre
    tool: read_file
    when: {args.path: {starts_with: /etc/}}
    then: {effect: deny, message: "Not from {args.path}."}
"""


@pytest.fixture
def _contracts_yaml(tmp_path, monkeypatch):
    (tmp_path / "contracts.yaml").write_text(BUNDLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def successes_of(guard: Edictum, tool_name: str, result: Any) -> int:
    """Call a tool that returns ``result``; how many successes the session has then."""
    guard.dispatch_sync(tool_name, {}, lambda: result, session_id="s")
    return guard.session("s").successes


# --- Custom tool success detection: the first document --------------------------------------------


@pytest.mark.usefixtures("_contracts_yaml")
def test_opening_example():
    guard = Edictum.from_yaml(
        "contracts.yaml",
        success_check=lambda tool_name, result: (
            not (isinstance(result, dict) and result.get("status", 200) >= 400)
        ),
    )
    assert successes_of(guard, "fetch", {"status": 500}) == 0
    assert successes_of(guard, "fetch", {"status": 200}) == 1
    with pytest.raises(EdictumDenied, match="Not from /etc/shadow"):
        guard.run_sync("read_file", {"path": "/etc/shadow"}, lambda path: path)


RECIPES = [
    (http_success_check, "fetch", {"status": 500, "error": "..."}, {"status": 200}),
    (db_success_check, "query_users", {"rows": []}, {"rows": [1]}),
    (db_success_check, "query_users", {}, {"rows": [1]}),
    (unified_success_check, "post", {"ok": False, "message": "..."}, {"ok": True}),
    (unified_success_check, "script", "Traceback (most recent call last):", "done"),
    (unified_success_check, "lookup", None, "found"),
]


@pytest.mark.parametrize(("check", "tool", "bad", "good"), RECIPES)
def test_recipes(check, tool, bad, good):
    guard = Edictum(success_check=check)
    assert successes_of(guard, tool, bad) == 0
    assert successes_of(guard, tool, good) == 1


def test_max_3_successful_executions_counts_right():
    """Wrong ``tool_success`` values cascade; with the checker the contract fires after three real
    successes.
    """
    answers = iter(
        [
            {"status": 200},
            {"status": 500},
            {"status": 503},
            {"status": 200},
            {"status": 200},
            {"status": 200},
        ]
    )
    guard = Edictum(success_check=http_success_check, limits=OperationLimits(max_successes=3))
    outcomes = [guard.dispatch_sync("fetch", {}, lambda: next(answers)) for _ in range(6)]
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "ToolExecutionResult",
        "ToolFailure",
        "ToolFailure",
        "ToolExecutionResult",
        "ToolExecutionResult",
        "ToolDenied",
    ]
    assert next(answers) == {"status": 200}, "the sixth body must not have run"


def test_signature_of_the_checker():
    seen = []

    def success_check(tool_name: str, result: Any) -> bool:
        seen.append((tool_name, result))
        return True

    guard = Edictum(success_check=success_check)
    assert guard.run_sync("fetch", {}, lambda: {"is_error": True}) == {"is_error": True}
    assert seen == [("fetch", {"is_error": True})]


def my_checker(tool_name: str, result: Any) -> bool:
    return result != "bad"


@pytest.mark.usefixtures("_contracts_yaml")
def test_checker_through_all_factories():
    yaml_content = BUNDLE
    # Constructor
    guard = Edictum(success_check=my_checker)
    made = [guard]
    # YAML
    guard = Edictum.from_yaml("contracts.yaml", success_check=my_checker)
    made.append(guard)
    # YAML string
    guard = Edictum.from_yaml_string(yaml_content, success_check=my_checker)
    made.append(guard)
    # Template
    guard = Edictum.from_template("file-agent", success_check=my_checker)
    made.append(guard)
    for guard in made:
        assert successes_of(guard, "anything", "bad") == 0
        assert successes_of(guard, "anything", "Error: but not for this checker") == 1


def test_merged_guards_use_the_first_guards_checker():
    guard1 = Edictum(success_check=my_checker)
    guard2 = Edictum(success_check=lambda tool_name, result: False)
    merged = Edictum.from_multiple([guard1, guard2])
    assert successes_of(merged, "t", "bad") == 0
    assert successes_of(merged, "t", "good") == 1


DEFAULT_HEURISTIC = [
    (None, True),
    ({"is_error": True}, False),
    ({"is_error": "yes"}, False),
    ({"is_error": False}, True),
    ("Error: no", False),
    ("fatal: not a repository", False),
    ("An Error: inside", True),
    ("error: in small letters", True),
    ({"status": 500}, True),
    ({"ok": False}, True),
    ([], True),
    (0, True),
]


@pytest.mark.parametrize(("result", "success"), DEFAULT_HEURISTIC)
def test_default_heuristic(result, success):
    assert default_success_check("t", result) is success
    assert successes_of(Edictum(), "t", result) == int(success)


def test_custom_checker_replaces_the_default():
    with pytest.raises(EdictumToolError):
        Edictum().run_sync("t", {}, lambda: "Error: no")
    assert (
        Edictum(success_check=lambda tool_name, result: True).run_sync("t", {}, lambda: "Error: no")
        == "Error: no"
    )


def test_audit_events_include_tool_success():
    guard = Edictum(success_check=my_checker)
    guard.dispatch_sync("t", {}, lambda: "bad")
    guard.dispatch_sync("t", {}, lambda: "good")
    assert [
        event.tool_success for event in guard.local_sink.events if event.tool_success is not None
    ] == [False, True]


# --- Typed outcomes: the third document (the second repeats the first) ----------------------------

NO = MISSING
SEED_FIELDS = {
    ToolExecutionResult: {
        "call_id": NO,
        "tool_name": NO,
        "output": NO,
        "elapsed_ms": NO,
        "was_coerced": False,
    },
    ToolTimeout: {
        "call_id": NO,
        "tool_name": NO,
        "deadline_s": NO,
        "elapsed_ms": NO,
        "retryable": True,
    },
    ToolFailure: {"call_id": NO, "tool_name": NO, "error": NO, "retryable": True, "elapsed_ms": 0},
    ToolDenied: {"call_id": NO, "tool_name": NO, "reason": NO, "details": ""},
    ToolArtifactReference: {
        "call_id": NO,
        "tool_name": NO,
        "artifact_id": NO,
        "summary": NO,
        "size_bytes": 0,
    },
}


@pytest.mark.parametrize("outcome_type", SEED_FIELDS, ids=lambda cls: cls.__name__)
def test_outcome_types_have_the_fields_order_and_defaults(outcome_type):
    assert is_dataclass(outcome_type)
    positional = [(item.name, item.default) for item in fields(outcome_type) if not item.kw_only]
    assert positional == list(SEED_FIELDS[outcome_type].items())
    made = outcome_type(*(["x"] * 4), *([1] * (len(positional) - 4)))
    with pytest.raises(AttributeError):
        made.call_id = "y"


def test_type_alias_and_size():
    assert set(get_args(ToolOutcome)) == {
        ToolExecutionResult,
        ToolTimeout,
        ToolFailure,
        ToolDenied,
        ToolArtifactReference,
    }
    assert Union[*SEED_FIELDS] == ToolOutcome
    assert TOOL_MESSAGE_MAX_CHARS == 12_000


def reads(outcome: ToolOutcome) -> Any:
    return json.loads(outcome_to_model_content(outcome))


def test_what_the_model_sees():
    assert outcome_to_model_content(ToolExecutionResult("c", "t", {"a": 1}, 3)) == json.dumps(
        {"a": 1}
    )
    timeout = reads(ToolTimeout("c", "t", 1.0, 3))
    assert timeout == {
        "status": "error",
        "error": timeout["error"],
        "timed_out": True,
        "retryable": True,
    }
    assert reads(ToolFailure("c", "t", "no", False)) == {
        "status": "error",
        "error": "no",
        "retryable": False,
    }
    assert reads(ToolDenied("c", "t", "duplicate")) == {
        "warning": "duplicate_tool_call",
        "skipped": True,
    }
    assert reads(ToolDenied("c", "t", "blocked")) == {
        "warning": "non_retryable_tool_failure",
        "skipped": True,
    }
    invalid = reads(ToolDenied("c", "t", "validation", "x is missing"))
    assert invalid == {
        "error": "argument_validation_failed",
        "details": "x is missing",
        "hint": invalid["hint"],
    }
    assert reads(ToolDenied("c", "t", "deadline")) == {
        "error": "Turn deadline expired; cannot execute tool.",
        "timed_out": True,
    }
    for other in ("pre_hook", "write_denied"):
        assert reads(ToolDenied("c", "t", other, "because")) == {
            "error": "Blocked: because",
            "blocked": True,
        }
    artifact = reads(ToolArtifactReference("c", "t", "art-1", "the first lines"))
    assert artifact == {
        "artifact_reference": "art-1",
        "summary": "the first lines",
        "hint": artifact["hint"],
    }
    assert "read_file" in artifact["hint"]


@pytest.mark.parametrize(
    ("outcome", "error", "retryable", "blocks"),
    [
        (ToolExecutionResult("c", "t", {}, 0), False, False, False),
        (ToolTimeout("c", "t", 1.0, 0), True, True, False),
        (ToolTimeout("c", "t", 1.0, 0, False), True, False, True),
        (ToolFailure("c", "t", "no"), True, True, False),
        (ToolFailure("c", "t", "no", False), True, False, True),
        (ToolDenied("c", "t", "blocked"), False, False, False),
        (ToolArtifactReference("c", "t", "a", "s"), False, False, False),
    ],
)
def test_predicates(outcome, error, retryable, blocks):
    assert (
        outcome_is_error(outcome),
        outcome_is_retryable(outcome),
        outcome_blocks_tool(outcome),
    ) == (error, retryable, blocks)


def test_usage_pattern():
    """The loop of the document, with a guard where it has its executor."""
    guard = Edictum(tools={"flaky": {"retry_on_failure": False}})
    messages: list[dict[str, Any]] = []
    blocked_tool_names: set[str] = set()

    def raises():
        raise RuntimeError("disk on fire")

    for call_id, name, fn in [("1", "ok", lambda: {"a": 1}), ("2", "flaky", raises)]:
        outcome = guard.dispatch_sync(name, {}, fn, call_id=call_id)
        messages.append(
            {
                "role": "tool",
                "tool_call_id": call_id,
                "content": outcome_to_model_content(outcome),
            }
        )
        if outcome_blocks_tool(outcome):
            blocked_tool_names.add(name)
    assert [json.loads(message["content"]) for message in messages] == [
        {"a": 1},
        {"status": "error", "error": "disk on fire", "retryable": False},
    ]
    assert blocked_tool_names == {"flaky"}


def test_an_exception_or_an_error_response_is_a_failure():
    """``ToolFailure``: "produced when the tool raises an exception or returns {"error": ...}"."""
    assert isinstance(
        Edictum().dispatch_sync("t", {}, lambda: {"error": "no such file"}), ToolFailure
    )
    assert isinstance(
        Edictum().dispatch_sync("t", {}, lambda: {"error": None}), ToolExecutionResult
    )


def test_a_tool_that_exceeds_its_deadline_is_a_timeout():
    async def hang() -> None:
        await asyncio.sleep(60)

    guard = Edictum(tools={"slow": {"retry_on_timeout": False}})
    outcome = guard.dispatch_sync("slow", {}, hang, timeout_s=0.02)
    assert isinstance(outcome, ToolTimeout)
    assert outcome_blocks_tool(outcome)
