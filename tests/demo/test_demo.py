"""The demo tells the truth: it runs as a person runs it, and what it prints is what happened."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edictum.harness import ArtifactStore

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict], Path]:
    """What the demo prints, the audit that it says it wrote, and where it kept large answers."""
    audit = tmp_path_factory.mktemp("demo") / "new" / "audit.jsonl"
    command = [sys.executable, str(DEMO), "--audit", str(audit), "--width", "200"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert printed.stderr == ""
    assert str(audit) in printed.stdout
    events = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    return printed.stdout, events, audit.parent / "artifacts"


def test_default_heuristic_misjudges_five_calls_and_stops_too_early(shown):
    text = shown[0].split("default heuristic: ")[1].split("success_check:")[0]
    assert text.startswith("5 of 11 calls misjudged")
    assert "before call 4 by max_successes (3 successes counted, 1 real)" in text
    assert "before call 7 by max_successes (3 successes counted, 0 real)" in text
    assert "max_consecutive_failures" not in text


def test_success_check_judges_all_calls_right_and_both_limits_fire_in_time(shown):
    text = shown[0].split("success_check: ")[1]
    assert text.startswith("0 of 11 calls misjudged")
    assert "before call 5 by max_consecutive_failures (1 success counted, 1 real)" in text
    assert "before call 8 by max_consecutive_failures (0 successes counted, 0 real)" in text
    assert "before call 11 by max_successes (3 successes counted, 3 real)" in text


def test_each_kind_of_outcome_shows_what_the_model_reads(shown):
    text = shown[0]
    assert '{"status": 500, "message": "Internal Server Error"}' in text
    assert '{"status": "error", "error": "Internal Server Error", "retryable": true, ' in text
    assert '{"region": "eu-west-1", "api_key": "[REDACTED]"}' in text
    assert '"timed_out": true, "retryable": false' in " ".join(text.split())
    assert (
        '{"error": "Blocked: Limit reached: 3 successes (limit: 3). Summarize progress and stop.",'
        ' "blocked": true}' in text
    )


def test_an_answer_of_two_megabytes_is_a_reference_for_the_model_and_whole_in_the_store(shown):
    text, events, artifacts = shown
    assert text.count("success, stored") == 2
    said = re.search(r'"artifact_reference": "(art_[0-9a-f]{16})"', text)
    assert said is not None
    assert "Use read_artifact with this reference" in " ".join(text.split())
    ended = [
        event
        for event in events
        if event["tool_name"] == "export_orders" and event["outcome"] is not None
    ]
    assert [event["outcome"] for event in ended] == ["artifact", "artifact"]
    kept = ArtifactStore(artifacts).retrieve(said[1])
    assert kept is not None
    assert len(kept) > 2_000_000
    assert kept.splitlines()[-1].startswith("order 042999,")


def test_it_fits_one_screen(shown):
    command = [
        sys.executable,
        str(DEMO),
        "--audit",
        str(shown[2].parent / "again.jsonl"),
        "--width",
        "110",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert len(printed.splitlines()) <= 50


def test_secret_is_neither_printed_nor_in_the_audit(shown):
    assert "sk-live" not in shown[0]
    assert "sk-live" not in json.dumps(shown[1])


def test_audit_has_every_call_with_its_end(shown):
    text, events, _ = shown
    assert f"{len(events)} events" in text
    ended = [event for event in events if event["action"] in ("call_executed", "call_failed")]
    refused = [event for event in events if event["action"] == "call_denied"]
    assert len(ended) == 22
    assert len(refused) == 6
    assert {event["decision_name"] for event in refused} == {
        "max_successes",
        "max_consecutive_failures",
    }
    hung = [event for event in ended if event["tool_name"] == "rebuild_index"]
    assert [event["outcome"] for event in hung] == ["timeout", "timeout"]


def test_audit_says_why_each_call_failed(shown):
    failed = [
        event
        for event in shown[1]
        if event["action"] == "call_failed" and event["session_id"].startswith("checked")
    ]
    reasons = {
        event["tool_name"]: (event["success_source"], event["success_reason"]) for event in failed
    }
    assert reasons["fetch_report"] == ("success_check", "status is 500")
    assert reasons["post_message"] == ("success_check", "ok is false")
    assert reasons["run_script"] == ("success_check", "the text contains a traceback")
    assert reasons["lookup_user"] == ("success_check", "the result is None")
    assert reasons["query_users"] == ("success_check", "rows is empty")
    assert reasons["rebuild_index"][0] == "timeout"
