"""The log: every record has a code, a logger of its part and fields; the table lists them all."""

from __future__ import annotations

import ast
import asyncio
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    Edictum,
    HookRegistration,
    RedactionPolicy,
    ToolDenied,
    Verdict,
    postcondition,
    precondition,
)
from edictum._logs import LOG_EVENTS
from edictum.adapters._reply import deny_broken_gate, make_reply, replace_text, tell_findings
from support.processes import ROOT

SOURCE = ROOT / "src" / "edictum"


def find_event(caplog: pytest.LogCaptureFixture, code: str) -> logging.LogRecord:
    found = [it for it in caplog.records if getattr(it, "edictum_event", None) == code]
    assert len(found) == 1, [it.getMessage() for it in caplog.records]
    return found[0]


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return vars(record)


def test_every_record_comes_from_the_table() -> None:
    """No module but ``_logs`` makes a logger, and each kind of record is used somewhere."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py") if path.name != "_logs.py"}
    assert len(texts) > 100
    assert [path.name for path, text in texts.items() if "getLogger(" in text] == []
    used = {
        node.args[0].id
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "log"
        and isinstance(node.args[0], ast.Name)
    } | {"POLICY_RELOADED", "POLICY_NOT_RELOADED", "POLICY_FILE_MISSING"}  # in a variable
    named = {
        target.id
        for node in ast.parse((SOURCE / "_logs.py").read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "_event"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert len(named) == len(LOG_EVENTS) >= 25
    assert named - used == set()
    assert used - named <= {"event"}


def test_codes_name_the_logger_of_their_part() -> None:
    """An alert can go by logger, level or code."""
    for code, event in LOG_EVENTS.items():
        part, _, what = code.partition(".")
        assert part.isidentifier() and what.isidentifier(), code
        assert event.logger == f"edictum.{part}"
        assert event.level in (logging.INFO, logging.WARNING, logging.ERROR)
        assert event.meaning.endswith(".") and event.remedy.endswith("."), code


async def test_a_contract_that_raises_names_its_call(caplog: pytest.LogCaptureFixture) -> None:
    """Tool, call and session are fields of the record."""

    @precondition("send", id="broken")
    def broken(call: Any) -> Verdict:
        raise ValueError("no")

    guard = Edictum(contracts=[broken])
    outcome = await guard.dispatch("send", {}, lambda: 1, session_id="s1")
    record = find_event(caplog, "policy.error")
    fields = fields_of(record)
    assert (record.name, record.levelname) == ("edictum.policy", "ERROR")
    assert (fields["tool"], fields["call_id"]) == ("send", outcome.call_id)
    assert fields["session_id"] == "s1"


BUNDLE = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: x}
tools: {refund: {amounts: {r: args.amount}}}
contracts:
  - {id: small, type: pre, tool: pay, when: {args.n: {gt: 1}}, then: {effect: deny, message: no}}
  - id: known
    type: pre
    tool: send
    when: {args.to: {equals: {field: principal.user_id}}}
    then: {effect: deny, message: no}
  - {id: b, type: session, limits: {max_amounts: {r: 9}}, then: {effect: deny, message: no}}
  - {id: s, type: sandbox, tool: read, within: ["/data/{principal.user_id}"], message: no}
"""
NOT_JUDGED = [
    ("pay", {"n": "5"}, "enforce"),
    ("pay", {"n": [5]}, "enforce"),
    ("pay", {"n": "5"}, "observe"),
    ("send", {"to": "a"}, "enforce"),
    ("refund", {"amount": "5"}, "enforce"),
    ("refund", {"amount": None}, "enforce"),
    ("read", {"path": "/data/a"}, "enforce"),
]


@pytest.mark.parametrize(("tool", "args", "mode"), NOT_JUDGED)
def test_a_value_that_cannot_be_judged_is_not_an_error_of_the_policy(
    caplog: pytest.LogCaptureFixture, tool: str, args: Any, mode: Any
) -> None:
    """A model that sends the wrong types must not wake an operator."""
    guard = Edictum.from_yaml_string(BUNDLE, mode=mode)
    outcome = guard.dispatch_sync(tool, args, lambda **_: 1)
    record = find_event(caplog, "call.not_judged")
    assert (record.name, record.levelname) == ("edictum.call", "WARNING")
    assert (fields_of(record)["tool"], fields_of(record)["call_id"]) == (tool, outcome.call_id)
    assert [it.levelname for it in caplog.records] == ["WARNING"]
    assert guard.local_sink.events[0].policy_error
    if mode == "enforce":
        assert isinstance(outcome, ToolDenied)
        assert outcome.policy_error


@pytest.mark.parametrize("name", ["contract", "hook"])
def test_code_of_the_policy_that_fails_beside_a_value_is_an_error_all_the_same(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Whichever of the two gave the reason."""

    def fail(call: Any) -> Any:
        raise ValueError("no")

    options: dict[str, Any] = {"contracts": [precondition("pay", id="broken")(fail)]}
    if name == "hook":
        options = {"hooks": [HookRegistration("before", "pay", fail)]}
    guard = Edictum.from_multiple([Edictum.from_yaml_string(BUNDLE), Edictum(**options)])
    guard.dispatch_sync("pay", {"n": "5"}, lambda n: 1)
    assert find_event(caplog, "policy.error").levelname == "ERROR"
    assert len(caplog.records) == 1


async def test_a_failing_sink_is_named(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """By its class."""

    class Broken:
        required = False
        has_failed = False

        def emit(self, event: Any) -> None:
            if not self.has_failed:
                self.has_failed = True
                raise OSError("full")

    await Edictum(audit_sink=Broken()).run("t", {}, lambda: 1)
    record = find_event(caplog, "audit.sink_failed")
    assert (record.name, fields_of(record)["sink"]) == ("edictum.audit", "Broken")


def test_a_store_that_is_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not for each call that is denied."""
    guard = Edictum(backend="redis://127.0.0.1:1/0?wait=30s")
    for _ in range(5):
        assert guard.dispatch_sync("t", {}, lambda: 1).decision_source == "ledger"
    assert [vars(it)["edictum_event"] for it in caplog.records] == ["ledger.unavailable"]
    asyncio.run(guard.close())


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_store_that_was_never_there_does_not_answer_again_when_a_program_ends(
    scheme: str,
) -> None:
    """Though threads, by which names of hosts are looked up, cannot be started any more."""
    code = """
        import logging, sys
        from edictum import Edictum
        logging.basicConfig(level=logging.INFO)
        Edictum(backend=sys.argv[1]).dispatch_sync("t", {}, lambda: 1)
        """
    url = f"{scheme}://no-such-host.invalid/0?wait=200ms"
    program = [sys.executable, "-c", textwrap.dedent(code), url]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    assert ended.stderr.count("Calls are denied until it answers again") == 1
    assert "WARNING" not in ended.stderr


async def test_a_callback_that_raises_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The call goes on."""

    def on_allow(call: Any) -> None:
        raise ValueError("mine")

    assert await Edictum(on_allow=on_allow).run("t", {}, lambda: 1) == 1
    record = find_event(caplog, "callback.failed")
    assert record.exc_info is not None
    assert "mine" in str(record.exc_info[1])


# --- Secrets --------------------------------------------------------------------------------------

PASSWORD = "hunter2-secret"


def leak(*_args: Any, **_given: Any) -> Any:
    try:
        raise OSError(f"password={PASSWORD}")
    except OSError as exc:
        raise RuntimeError(f"postgresql://svc:{PASSWORD}@db/prod and CASE-4711") from exc


class LeakingEngine:
    run = run_sync = staticmethod(leak)


class LeakingSink:
    emit = staticmethod(leak)


def warn_always(call: Any, result: Any) -> Verdict:
    return Verdict.fail("hm")


def say_to_adapter() -> None:
    reply = make_reply(
        Edictum(contracts=[postcondition("*")(warn_always)]).dispatch_sync("t", {}, lambda: 1),
        replace_text,
    )
    tell_findings(reply, leak)


def call(**options: Any) -> Callable[[Path], Any]:
    return lambda _: Edictum(**options).dispatch_sync("t", {}, lambda: 1)


deny_all = precondition("*")(lambda call: Verdict.fail("no"))
LEAKING: dict[str, Callable[[Path], Any]] = {
    "sink": call(audit_sink=LeakingSink()),
    "on_allow": call(on_allow=leak),
    "on_deny": call(on_deny=leak, contracts=[deny_all]),
    "after-hook": call(hooks=[HookRegistration("after", "t", leak)]),
    "contract": call(contracts=[precondition("*")(leak)]),
    "principal resolver": call(principal_resolver=leak),
    "success check": call(success_check=leak),
    "on_postcondition_warn": lambda _: say_to_adapter(),
    "engine": lambda _: Edictum().dispatch_sync("t", {}, lambda: 1, run_in=LeakingEngine()),
    "gate of an adapter": lambda _: deny_broken_gate("t", catch(leak)),
}


def catch(function: Callable[[], Any]) -> Exception:
    try:
        function()
    except Exception as exc:
        return exc
    raise AssertionError("it did not raise")


@pytest.mark.parametrize("place", LEAKING)
def test_what_is_raised_is_logged_without_secrets(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the message nor in the traceback, nor in what handlers are given beside it."""
    LEAKING[place](tmp_path)
    assert caplog.records
    assert "CASE-4711" in caplog.text, "the rest of it is kept"
    shown = caplog.text + repr([vars(record) for record in caplog.records])
    assert PASSWORD not in shown
    for record in caplog.records:
        assert record.exc_info is None


def test_a_callback_of_a_guard_is_logged_by_its_own_redaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = RedactionPolicy(custom_patterns=[(r"CASE-\d+", "[CASE]")])
    Edictum(on_allow=leak, redaction=own).dispatch_sync("t", {}, lambda: 1)
    assert "CASE-4711" not in caplog.text
    assert "[CASE]" in caplog.text
    assert "in leak" in caplog.text, "the traceback is there"
