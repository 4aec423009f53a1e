"""Settings of a bundle that are not conditions: durations, variables of the process, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum, EdictumConfigError, ToolFailure, outcome_to_model_content
from edictum.contracts._language import Language
from edictum.contracts._parse import parse
from support.bundles import bundle_of, contract


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(600, 600), (0.5, 0.5), ("500ms", 0.5), ("2s", 2), ("5m", 300), ("1.5h", 5400), ("1d", 86400)],
)
def test_lengths_of_time_take_a_unit_or_seconds(written: Any, seconds: float) -> None:
    ask = contract("ask", effect="approve")
    ask["then"]["timeout"] = written
    fence = {"id": "in", "type": "sandbox", "tool": "*", "within": ["/srv"], "message": "m"}
    text = bundle_of(
        ask,
        {**fence, "outside": "approve", "timeout": written},
        tools={"t": {"timeout_s": written}},
        session={"lease": written, "ttl": written},
    )
    bundle = parse(text, "b", Language())
    assert [spec.timeout for spec in bundle.contracts] == [seconds, seconds]
    assert bundle.tools["t"]["timeout_s"] == seconds
    assert (bundle.session["lease"], bundle.session["ttl"]) == (seconds, seconds)
    policy = Edictum.from_yaml_string(text).policy
    assert policy.contracts[0].timeout == seconds
    assert policy.entry("t").timeout_s == seconds


# --- Variables of the process ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("${STORE}", "sqlite:///a.db"),
        ("redis://${HOST}:${PORT:-6379}/0", "redis://cache:6379/0"),
        ("${UNSET:-memory:}", "memory:"),
        ("${EMPTY:-memory:}", "memory:"),
        ("${UNSET:-}x", "x"),
        ("memory:?a=$${HOST}", "memory:?a=${HOST}"),
        ("memory:$HOST", "memory:$HOST"),
    ],
)
def test_variables_are_filled_into_the_store(
    written: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"STORE": "sqlite:///a.db", "HOST": "cache", "EMPTY": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.delenv("PORT", raising=False)
    bundle = parse(bundle_of(session={"store": written}), "b", Language())
    assert bundle.session["store"] == read


async def test_the_audit_file_of_a_bundle_may_name_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIT_DIR", str(tmp_path))
    text = bundle_of(observability={"file": "${AUDIT_DIR}/audit.jsonl"})
    guard = Edictum.from_yaml_string(text)
    await guard.run("t", {}, lambda: 1)
    await guard.close()
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["call_allowed", "call_executed"]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("redis://${NO_SUCH}/0", "the environment variable 'NO_SUCH' is not set"),
        ("${1x}", "'${1x}' does not name a variable"),
        ("${NO_SUCH:-}", "this text is empty once its variables are filled in"),
    ],
)
def test_a_variable_that_cannot_be_filled_in_is_an_error_at_load(
    written: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(EdictumConfigError) as caught:
        Edictum.from_yaml_string(bundle_of(session={"store": written}))
    assert why in str(caught.value)


def test_contracts_take_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    guard = Edictum.from_yaml_string(
        bundle_of(contract("c", when={"args.x": {"equals": "${SECRET}"}}, message="${SECRET}"))
    )
    assert guard.evaluate("t", {"x": "x"}).verdict == "allow"
    assert guard.evaluate("t", {"x": "${SECRET}"}).deny_reasons == ["${SECRET}"]


# --- What a failure says --------------------------------------------------------------------------


def failure_of(rule: dict[str, Any], value: Any, **tool: Any) -> ToolFailure:
    text = bundle_of(success=[{"id": "r", "tool": "*", **rule}], tools={"t": tool} if tool else {})
    outcome = Edictum.from_yaml_string(text).dispatch_sync("t", {}, lambda: value)
    assert isinstance(outcome, ToolFailure)
    return outcome


BUSY = {"failure_when": {"result.status": {"gte": 400}}}


def test_the_message_of_a_success_rule_reaches_the_model() -> None:
    rule = {**BUSY, "message": "The shop is busy: try in {result.after} s."}
    outcome = failure_of(rule, {"status": 503, "after": 5, "error": "x"})
    assert outcome.error == outcome.success_reason == "The shop is busy: try in 5 s."
    assert "The shop is busy: try in 5 s." in str(outcome_to_model_content(outcome))


def test_without_a_message_a_failure_is_told_as_before() -> None:
    outcome = failure_of(BUSY, {"status": 503, "error": "x"})
    assert outcome.error == "x"
    assert outcome.success_reason == "result.status is 503 (gte 400)"


@pytest.mark.parametrize(
    ("rule", "tool", "retryable"),
    [
        ({}, {}, True),
        ({}, {"retry_on_failure": False}, False),
        ({"retryable": False}, {}, False),
        ({"retryable": True}, {"retry_on_failure": False}, True),
        ({"retryable": False}, {"retry_on_failure": True}, False),
    ],
)
def test_a_success_rule_says_whether_to_try_again(
    rule: dict[str, Any], tool: dict[str, Any], retryable: bool
) -> None:
    assert failure_of({**BUSY, **rule}, {"status": 503}, **tool).retryable is retryable


def test_a_message_quotes_nothing_that_a_contract_has_taken_out() -> None:
    rule = {"id": "r", "tool": "*", **BUSY, "message": "{result.note}"}
    post = contract("p", type="post", effect="redact", when={"result.note": {"contains": "s3cret"}})
    guard = Edictum.from_yaml_string(bundle_of(post, success=[rule]))
    outcome = guard.dispatch_sync("t", {}, lambda: {"status": 500, "note": "a s3cret b"})
    assert isinstance(outcome, ToolFailure)
    assert "s3cret" not in outcome.error + outcome.success_reason
    assert "a [REDACTED] b" in outcome.error
