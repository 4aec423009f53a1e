"""Bad input gives an error that says what, where and what to do; nothing is half registered,
nothing is counted.
"""

from __future__ import annotations

from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    Contract,
    Edictum,
    EdictumConfigError,
    EdictumError,
    EdictumInputError,
    FileAuditSink,
    HookRegistration,
    OperationLimits,
    Principal,
    RedactionPolicy,
    Session,
    ToolCall,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.core.contract import Kind
from edictum.sessions import MemoryLedger
from support.values import nest


def passing(*args: Any) -> Verdict:
    return Verdict.pass_()


def looped() -> dict[str, Any]:
    args: dict[str, Any] = {}
    args["self"] = args
    return args


# --- One call -------------------------------------------------------------------------------------

CALLS: dict[str, tuple[tuple[Any, Any, Any], dict[str, Any], list[str]]] = {
    "empty name": (("", {}, print), {}, ["tool_name", "''", "non-empty"]),
    "name is None": ((None, {}, print), {}, ["tool_name", "None"]),
    "name is a number": ((5, {}, print), {}, ["tool_name", "5"]),
    "name is a list": ((["t"], {}, print), {}, ["tool_name", "['t']"]),
    "name with a line break": (("a\nb", {}, print), {}, ["tool_name", "'\\n'", "position 1"]),
    "name with NUL": (("a\0b", {}, print), {}, ["tool_name", "'\\x00'", "position 1"]),
    "name with CR": (("a\rb", {}, print), {}, ["tool_name", "'\\r'"]),
    "name with a slash": (("a/b", {}, print), {}, ["tool_name", "'/'", "slashes"]),
    "name with a backslash": (("a\\b", {}, print), {}, ["tool_name", "backslashes"]),
    "name with an escape": (("a\x1b[0m", {}, print), {}, ["tool_name", "'\\x1b'"]),
    "name with C1": (("a\x9b", {}, print), {}, ["tool_name", "control"]),
    "name too long": (("a" * 300, {}, print), {}, ["tool_name", "300 characters", "at most 256"]),
    "args are None": (("t", None, print), {}, ["arguments for 't'", "NoneType", "Pass a dict"]),
    "args are a list": (("t", [1], print), {}, ["arguments for 't'", "list"]),
    "args are text": (("t", '{"a": 1}', print), {}, ["arguments for 't'", "str"]),
    "args with a number as key": (
        ("t", {1: 2}, print),
        {},
        ["arguments for 't'", "key 1", "int", "strings"],
    ),
    "args that contain themselves": (
        ("t", looped(), print),
        {},
        ["arguments for 't'", "200 levels", "finite"],
    ),
    "args nested too deeply": (
        ("t", {"x": nest(500, [])}, print),
        {},
        ["arguments for 't'", "200 levels"],
    ),
    "tool is None": (("t", {}, None), {}, ["'t'", "None", "function"]),
    "tool is a name": (("t", {}, "print"), {}, ["'t'", "'print'", "function"]),
    "session id empty": (
        ("t", {}, print),
        {"session_id": ""},
        ["session_id", "1 to 256 characters"],
    ),
    "session id a number": (("t", {}, print), {"session_id": 5}, ["session_id", "5"]),
    "session id with a line break": (
        ("t", {}, print),
        {"session_id": "a\nb"},
        ["session_id", "control characters"],
    ),
    "session id too long": (("t", {}, print), {"session_id": "s" * 300}, ["session_id", "256"]),
    "timeout of zero": (("t", {}, print), {"timeout_s": 0}, ["timeout_s", "0", "more than 0"]),
    "negative timeout": (("t", {}, print), {"timeout_s": -1}, ["timeout_s", "-1"]),
    "timeout is text": (("t", {}, print), {"timeout_s": "5"}, ["timeout_s", "'5'"]),
    "timeout is a flag": (("t", {}, print), {"timeout_s": True}, ["timeout_s", "True"]),
    "timeout is NaN": (("t", {}, print), {"timeout_s": float("nan")}, ["timeout_s", "nan"]),
    "run_in nowhere": (
        ("t", {}, print),
        {"run_in": "cloud"},
        ["run_in", "'cloud'", "'inline'", "'thread'"],
    ),
    "unknown option": (("t", {}, print), {"sesion_id": "s"}, ["sesion_id", "session_id"]),
    "principal is text": (
        ("t", {}, print),
        {"principal": "bob"},
        ["principal", "'bob'", "Principal("],
    ),
    "principal is a dict": (
        ("t", {}, print),
        {"principal": {"role": "x"}},
        ["principal", "Principal("],
    ),
    "metadata is text": (("t", {}, print), {"metadata": "x"}, ["metadata", "'x'"]),
    "metadata contains itself": (("t", {}, print), {"metadata": looped()}, ["metadata"]),
    "call id is a number": (("t", {}, print), {"call_id": 5}, ["call_id", "5"]),
    "parent call id is a number": (
        ("t", {}, print),
        {"parent_call_id": 5},
        ["parent_call_id", "5"],
    ),
    "call index is text": (("t", {}, print), {"call_index": "first"}, ["call_index", "'first'"]),
    "environment is a number": (("t", {}, print), {"environment": 5}, ["environment", "5"]),
    "timestamp is text": (
        ("t", {}, print),
        {"timestamp": "yesterday"},
        ["timestamp", "'yesterday'"],
    ),
}


async def called(drive: Any, name: Any, args: Any, fn: Any, options: dict[str, Any]) -> None:
    result = drive(name, args, fn, **options)
    if isawaitable(result):
        await result


@pytest.mark.parametrize("case", CALLS)
async def test_a_call_that_cannot_be_governed_is_refused_and_not_counted(case: str) -> None:
    """In every driving, with an error of the library that says what, where and what to do."""
    (name, args, fn), options, said = CALLS[case]
    guard = Edictum()
    call_drivers = [guard.run, guard.dispatch, guard.run_sync, guard.dispatch_sync]
    for drive in call_drivers:
        with pytest.raises((EdictumInputError, EdictumConfigError, TypeError)) as raised:
            await called(drive, name, args, fn, options)
        for word in said:
            assert word in str(raised.value), (word, str(raised.value))
        assert isinstance(raised.value, EdictumError) or case == "unknown option"
    assert (guard.session().attempts, guard.local_sink.events) == (0, [])


@pytest.mark.parametrize("case", [case for case in CALLS if not case.startswith("tool is")])
async def test_a_ticket_is_refused_alike(case: str) -> None:
    """``begin`` checks what ``run`` checks."""
    (name, args, _), options, said = CALLS[case]
    if "timeout" in case or "run_in" in case:
        return
    guard = Edictum()
    with pytest.raises((EdictumInputError, EdictumConfigError, TypeError)) as raised:
        await guard.begin(name, args, **options)
    assert all(word in str(raised.value) for word in said)
    with pytest.raises(type(raised.value)):
        guard.begin_sync(name, args, **options)
    assert guard.session().attempts == 0


def test_a_refused_call_does_not_use_up_a_call_index() -> None:
    """The audit has no holes that nobody can explain; a dry run leaves none either."""
    guard = Edictum()
    guard.dispatch_sync("t", {}, lambda: 1)
    with pytest.raises(EdictumInputError):
        guard.dispatch_sync("t", {}, lambda: 1, session_id="")
    guard.evaluate("t", {})
    guard.dispatch_sync("t", {}, lambda: 1)
    assert [event.call_index for event in guard.local_sink.filter("call_executed")] == [0, 1]


def test_input_errors_are_value_errors_with_a_code_and_a_hint() -> None:
    """As the older library raised ValueError."""
    with pytest.raises(ValueError, match="Invalid tool_name") as raised:
        Edictum().dispatch_sync("a/b", {}, print)
    error = raised.value
    assert isinstance(error, EdictumInputError)
    assert (error.code, error.hint) == (
        "input_error",
        "Use a name without slashes, backslashes and control characters.",
    )


def test_names_from_every_language_are_fine() -> None:
    """Only what could be mistaken for something else is refused."""
    for name in ("发送", "café", "a b", "mcp__server__tool", "a.b:c", "x" * 256):
        assert Edictum().run_sync(name, {}, lambda: 1) == 1


# --- The guard ------------------------------------------------------------------------------------

GUARDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown mode": ({"mode": "audit"}, ["mode", "'audit'", "'enforce' or 'observe'"]),
    "mode is None": ({"mode": None}, ["mode", "None"]),
    "contracts is one contract": ({"contracts": precondition("*")(passing)}, ["contracts", "list"]),
    "contracts is text": ({"contracts": "no-rm"}, ["contracts", "str", "list"]),
    "a plain function as contract": (
        {"contracts": [precondition("*")(passing), passing]},
        ["contracts[1]", "passing", "@precondition"],
    ),
    "hooks is text": ({"hooks": "x"}, ["hooks", "list"]),
    "a plain function as hook": (
        {"hooks": [passing]},
        ["hooks[0]", "passing", "HookRegistration("],
    ),
    "limits is a dict": ({"limits": {"max_tool_calls": 3}}, ["limits", "OperationLimits("]),
    "tools is a list": ({"tools": ["send"]}, ["tools", "list", "side_effect"]),
    "tool entry is text": ({"tools": {"send": "read"}}, ["tools['send']", "'read'", "dict"]),
    "unknown tool key": (
        {"tools": {"send": {"sideeffect": "read"}}},
        ["tools['send']", "'sideeffect'", "side_effect"],
    ),
    "unknown side effect": (
        {"tools": {"send": {"side_effect": "delete"}}},
        ["tools['send']", "side_effect", "'delete'", "irreversible"],
    ),
    "side effect is a list": (
        {"tools": {"send": {"side_effect": ["read"]}}},
        ["tools['send']", "side_effect"],
    ),
    "idempotent is text": (
        {"tools": {"send": {"idempotent": "yes"}}},
        ["tools['send']", "idempotent", "'yes'", "True, False"],
    ),
    "tool timeout of zero": (
        {"tools": {"send": {"timeout_s": 0}}},
        ["tools['send']", "timeout_s", "more than 0"],
    ),
    "tool timeout is text": (
        {"tools": {"send": {"timeout_s": "5"}}},
        ["tools['send']", "timeout_s", "'5'"],
    ),
    "tool run_in nowhere": (
        {"tools": {"send": {"run_in": "cloud"}}},
        ["tools['send']", "run_in", "'cloud'", "inline, thread"],
    ),
    "tool without a name": ({"tools": {"": {}}}, ["tools", "''"]),
    "tool name is a number": ({"tools": {5: {}}}, ["tools", "5"]),
    "checker is a flag": ({"success_check": True}, ["success_check", "True", "function"]),
    "checker is text": ({"success_check": "http_status"}, ["success_check", "'http_status'"]),
    "on_deny is text": ({"on_deny": "log"}, ["on_deny", "'log'"]),
    "on_allow is text": ({"on_allow": "log"}, ["on_allow", "'log'"]),
    "resolver is a principal": (
        {"principal_resolver": Principal()},
        ["principal_resolver", "function"],
    ),
    "principal is text": ({"principal": "bob"}, ["principal", "'bob'", "Principal("]),
    "sink without emit": ({"audit_sink": object()}, ["audit_sink"]),
    "sink is a path": (
        {"audit_sink": "audit.jsonl"},
        ["audit_sink is 'audit.jsonl'", 'pass FileAuditSink("audit.jsonl")'],
    ),
    "sink is a Path": (
        {"audit_sink": Path("audit.jsonl")},
        ["audit_sink is 'audit.jsonl'", 'pass FileAuditSink("audit.jsonl")'],
    ),
    "one of several sinks without emit": (
        {"audit_sink": [FileAuditSink("x"), print]},
        ["audit_sink[1]", "emit"],
    ),
    "approval backend is a flag": (
        {"approval_backend": True},
        ["approval_backend", "bool", "request_approval"],
    ),
    "backend is a dict": ({"backend": {}}, ["backend", "dict", "Ledger", "StorageBackend"]),
    "backend URL of an unknown kind": ({"backend": "mysql://x"}, ["mysql"]),
    "redaction is a list": ({"redaction": ["password"]}, ["redaction", "RedactionPolicy"]),
    "environment is None": ({"environment": None}, ["environment", "None"]),
    "clock without time": ({"clock": 5}, ["clock"]),
}


@pytest.mark.parametrize("case", GUARDS)
def test_a_guard_that_is_configured_wrongly_is_not_made(case: str) -> None:
    """EdictumConfigError, before any call."""
    options, said = GUARDS[case]
    with pytest.raises(EdictumConfigError) as raised:
        Edictum(**options)
    for word in said:
        assert word in str(raised.value), (word, str(raised.value))
    assert raised.value.code == "config_error"


def test_an_unknown_option_of_the_guard_is_refused() -> None:
    """By Python itself."""
    with pytest.raises(TypeError, match="contrcts"):
        Edictum(contrcts=[])  # type: ignore[call-arg]


# --- Contracts, hooks, limits, policies -----------------------------------------------------------

PIECES: dict[str, tuple[Any, list[str]]] = {
    "precondition without a tool": (
        lambda: precondition(passing),
        ["@precondition was used without a tool", '@precondition("tool_name")'],
    ),
    "postcondition without a tool": (
        lambda: postcondition(passing),
        ["@postcondition was used without a tool"],
    ),
    "empty tool": (lambda: precondition("")(passing), ["tools", "'*' means all"]),
    "no tools": (lambda: precondition([])(passing), ["tools"]),
    "tool is a number": (lambda: precondition(5)(passing), ["tool", "5"]),
    "tools with a number": (lambda: precondition(["a", 5])(passing), ["tools"]),
    "when is text": (lambda: precondition("*", when="x")(passing), ["when", "'x'", "function"]),
    "unknown effect": (
        lambda: precondition("*", effect="block")(passing),
        ["passing", "'block'", "deny, approve"],
    ),
    "effect of another kind": (
        lambda: precondition("*", effect="redact")(passing),
        ["'redact'", "deny, approve"],
    ),
    "effect of a postcondition": (
        lambda: postcondition("*", effect="approve")(passing),
        ["'approve'", "warn, redact, deny"],
    ),
    "session contract that asks": (
        lambda: session_contract(effect="approve")(passing),
        ["'approve'", "deny"],
    ),
    "unknown contract mode": (
        lambda: precondition("*", mode="warn")(passing),
        ["passing", "mode", "'warn'"],
    ),
    "unknown contract option": (lambda: precondition("*", colour="red")(passing), ["colour"]),
    "contract without an id": (lambda: precondition("*", id="")(passing), ["id"]),
    "contract is no function": (
        lambda: precondition("*", id="x")(5),
        ["@precondition", "int", "def"],
    ),
    "session contract is no function": (
        lambda: session_contract(5),
        ["@session_contract", "int", "def"],
    ),
    "timeout effect": (
        lambda: precondition("*", timeout_effect="approve")(passing),
        ["timeout_effect", "'deny' or 'allow'"],
    ),
    "approval timeout is text": (
        lambda: precondition("*", timeout="5")(passing),
        ["timeout", "'5'"],
    ),
    "approval timeout of zero": (lambda: precondition("*", timeout=0)(passing), ["timeout", "0"]),
    "redact is text": (
        lambda: postcondition("*", effect="redact", redact="x")(passing),
        ["redact", "'x'"],
    ),
    "contract of an unknown kind": (
        lambda: Contract(id="x", kind="before", check=passing),
        ["kind", "'before'"],
    ),
    "tags is one text": (lambda: precondition("*", tags="pii")(passing), ["tags", "'pii'"]),
    "hook phase": (
        lambda: HookRegistration("during", "*", passing),
        ["phase", "'during'", "'before' or 'after'"],
    ),
    "hook without a tool": (lambda: HookRegistration("before", "", passing), ["tool", "''"]),
    "hook is no function": (lambda: HookRegistration("before", "*", None), ["callback", "None"]),
    "hook when": (lambda: HookRegistration("before", "*", passing, when=5), ["when", "5"]),
    "negative limit": (
        lambda: OperationLimits(max_tool_calls=-1),
        ["max_tool_calls", "-1", "0 or more"],
    ),
    "limit is text": (lambda: OperationLimits(max_attempts="3"), ["max_attempts", "'3'"]),
    "limit is a flag": (lambda: OperationLimits(max_successes=True), ["max_successes", "True"]),
    "limit is a fraction": (lambda: OperationLimits(max_failures=1.5), ["max_failures", "1.5"]),
    "per-tool limits are a list": (
        lambda: OperationLimits(max_calls_per_tool=["send"]),
        ["max_calls_per_tool", "dict"],
    ),
    "per-tool limit is negative": (
        lambda: OperationLimits(max_calls_per_tool={"send": -1}),
        ["max_calls_per_tool['send']", "-1"],
    ),
    "per-tool limit of nothing": (
        lambda: OperationLimits(max_successes_per_tool={"": 1}),
        ["max_successes_per_tool", "''"],
    ),
    "per-tool limit of a number": (
        lambda: OperationLimits(max_successes_per_tool={5: 1}),
        ["max_successes_per_tool", "5"],
    ),
    "redaction pattern": (lambda: RedactionPolicy(custom_patterns=[("(", "x")]), ["'('", "regex"]),
    "rotation at nothing": (lambda: FileAuditSink("x", max_bytes=0), ["max_bytes", "0"]),
    "keep no file": (lambda: FileAuditSink("x", keep=0), ["keep", "0"]),
    "no guards to merge": (lambda: Edictum.from_multiple([]), ["from_multiple", "at least one"]),
    "merging something else": (
        lambda: Edictum.from_multiple([Edictum(), 5]),
        ["from_multiple", "5"],
    ),
    "principal of a guard": (lambda: Edictum().set_principal("bob"), ["principal", "'bob'"]),
}


@pytest.mark.parametrize("case", PIECES)
def test_a_piece_that_is_wrong_is_refused_where_it_is_made(case: str) -> None:
    """Not when the first call meets it."""
    make, said = PIECES[case]
    with pytest.raises((EdictumConfigError, TypeError)) as raised:
        make()
    assert isinstance(raised.value, EdictumConfigError) or case == "unknown contract option"
    for word in said:
        assert word in str(raised.value), (word, str(raised.value))


@pytest.mark.parametrize("session_id", ["", None, 5, "a\nb", "x" * 300])
def test_a_session_with_a_bad_id_is_refused(session_id: Any) -> None:
    """Where it is made."""
    with pytest.raises(EdictumInputError, match="session_id"):
        Session(session_id, MemoryLedger())


@pytest.mark.parametrize(
    "bad",
    [{"tool_name": "a/b"}, {"tool_name": "t", "args": [1]}, {"tool_name": "t", "args": {1: 2}}],
)
def test_a_call_made_by_hand_is_checked_too(bad: Any) -> None:
    """ToolCall is public."""
    with pytest.raises(EdictumInputError):
        ToolCall(**bad)


# --- Nothing half done ----------------------------------------------------------------------------


def test_a_failed_change_leaves_the_guard_as_it_was() -> None:
    """set_principal checks first."""
    guard = Edictum(principal=Principal(user_id="u"))
    with pytest.raises(EdictumConfigError):
        guard.set_principal({"user_id": "evil"})  # type: ignore[arg-type]
    assert guard.principal == Principal(user_id="u")


def test_a_guard_that_was_refused_has_opened_nothing(tmp_path: Any) -> None:
    """The audit file of a sink is made by the first event, not by the constructor."""
    path = tmp_path / "audit" / "log.jsonl"
    with pytest.raises(EdictumConfigError):
        Edictum(audit_sink=FileAuditSink(path), mode="nonsense")  # type: ignore[arg-type]
    assert not path.parent.exists()


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"tool": "a/b"},
        {"tool": "t", "args": [1]},
        {"tool": "t", "principal": {"nickname": "x"}},
        5,
    ],
)
def test_a_bad_item_of_a_batch_says_which(item: Any) -> None:
    """The number of the call in the list."""
    with pytest.raises((EdictumInputError, KeyError, TypeError)) as raised:
        Edictum().evaluate_batch([{"tool": "fine"}, item])
    assert "1" in str(raised.value) or "'t'" in str(raised.value) or "'a/b'" in str(raised.value)


def test_a_kind_of_contract_is_one_of_four() -> None:
    """The closed set."""
    assert [kind.value for kind in Kind] == ["pre", "sandbox", "session", "post"]
