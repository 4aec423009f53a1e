"""What a model reads when a part of the gate fails: no host, port, path, user name, driver text."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from edictum import (
    Edictum,
    EdictumDenied,
    EdictumToolError,
    FileAuditSink,
    HookRegistration,
    ScopedLimits,
    Verdict,
    outcome_to_model_content,
    postcondition,
    precondition,
    session_contract,
)
from edictum.adapters._reply import make_reply, replace_text
from edictum.approval import ApprovalRequest
from edictum.execution.celery import CeleryEngine
from edictum.execution.processes import ProcessPool
from edictum.harness import (
    ArtifactError,
    ArtifactStore,
    BoundedToolExecutor,
    ToolCallRequest,
    TurnBudget,
    TurnState,
    tool,
)
from edictum.outcomes import (
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    outcome_from_dict,
    outcome_to_dict,
)

HOST, PORT, USER, DATABASE = "db7.internal.example", 59_999, "svc_ledger", "prod_sessions"
SECRETS_OF_OPERATORS = (
    *(HOST, str(PORT), USER, DATABASE, "127.0.0.1", "localhost", "/", "Errno", "errno"),
    *("redis", "asyncpg", "sqlite", "Connection", "refused by", "No space", "kombu", "password"),
)


@precondition("send", effect="approve")
def ask(call: Any) -> Verdict:
    return Verdict.fail("May it?")


class AwayApproval:
    """An approval service whose server does not answer, as its client says it."""

    async def request_approval(self, *_args: Any, **_asked: Any) -> ApprovalRequest:
        raise ConnectionRefusedError(f"[Errno 111] {USER}@{HOST}:{PORT}/{DATABASE}")

    async def wait_for_decision(self, *_args: Any, **_asked: Any) -> Any:
        raise AssertionError("nothing was asked")


def raise_unreachable(_tool: str, _args: Any) -> Any:
    raise OSError(f"ldap://{USER}@{HOST}:{PORT} does not answer")


class AwayEngine:
    """An engine whose broker does not answer, as its client says it."""

    async def run(self, effect: Any) -> Any:
        raise ConnectionError(f"Error 111 connecting to {HOST}:{PORT}")

    def run_sync(self, effect: Any) -> Any:
        raise ConnectionError(f"Error 111 connecting to {HOST}:{PORT}")


def unwritable_file(folder: Path) -> FileAuditSink:
    (folder / "file").write_text("a file where a folder is needed")
    return FileAuditSink(folder / "file" / DATABASE / "audit.jsonl")


def broken_sqlite(folder: Path) -> str:
    (folder / f"{DATABASE}.db").write_bytes(b"not a database, " * 200)
    return f"sqlite:///{folder}/{DATABASE}.db"


def unusable_python(folder: Path) -> ProcessPool:
    """A pool whose workers cannot start: their interpreter ends, and prints nothing, while it reads
    its settings.
    """
    settings = folder / DATABASE
    settings.mkdir()
    (settings / "sitecustomize.py").write_text("import os\nos._exit(1)\n")
    return ProcessPool(1, env={"PYTHONPATH": str(settings)})


# part: what the guard gets, and the options of the call
FAILING: dict[str, Callable[[Path], tuple[dict[str, Any], dict[str, Any]]]] = {
    "ledger, Redis": lambda _: (
        {"backend": f"redis://{USER}:pw@127.0.0.1:{PORT}/0?wait=0.5"},
        {},
    ),
    "ledger, PostgreSQL": lambda _: (
        {"backend": f"postgresql://{USER}:pw@127.0.0.1:{PORT}/{DATABASE}?wait=0.5"},
        {},
    ),
    "ledger, SQLite": lambda folder: ({"backend": broken_sqlite(folder)}, {}),
    "ledger, several PostgreSQL": lambda _: (
        {"backend": f"postgresql://{USER}:pw@127.0.0.1:{PORT},127.0.0.1:1/{DATABASE}?wait=0.5"},
        {},
    ),
    "ledger, Sentinel": lambda _: (
        {"backend": f"redis+sentinel://{USER}:pw@127.0.0.1:{PORT},127.0.0.1:1/ours/0?wait=0.5"},
        {},
    ),
    "audit file": lambda folder: ({"audit_sink": unwritable_file(folder)}, {}),
    "audit, SQLite": lambda folder: ({"audit_sink": broken_sqlite(folder)}, {}),
    "audit, PostgreSQL": lambda _: (
        {"audit_sink": f"postgresql://{USER}:pw@127.0.0.1:{PORT}/{DATABASE}?wait=0.5"},
        {},
    ),
    "approvals": lambda _: ({"contracts": [ask], "approval_backend": AwayApproval()}, {}),
    "approvals, SQLite": lambda folder: (
        {"contracts": [ask], "approval_backend": broken_sqlite(folder)},
        {},
    ),
    "approvals, Redis": lambda _: (
        {
            "contracts": [ask],
            "approval_backend": f"redis://{USER}:pw@127.0.0.1:{PORT}/0?wait=0.5",
        },
        {},
    ),
    "approvals, PostgreSQL": lambda _: (
        {
            "contracts": [ask],
            "approval_backend": f"postgresql://{USER}:pw@127.0.0.1:{PORT}/{DATABASE}?wait=0.5",
        },
        {},
    ),
    "principal resolver": lambda _: ({"principal_resolver": raise_unreachable}, {}),
    "engine": lambda _: ({}, {"run_in": AwayEngine()}),
    "Celery": lambda _: (
        {},
        {"run_in": CeleryEngine(f"redis://{USER}:pw@127.0.0.1:{PORT}/0"), "timeout_s": 2},
    ),
    "process engine": lambda folder: (
        {},
        {"run_in": unusable_python(folder), "timeout_s": 20},
    ),
}


async def read_by_a_model(
    guard: Edictum,
    options: dict[str, Any],
    function: Callable[..., Any] = os.path.join,
    args: Mapping[str, Any] = MappingProxyType({"to": "ada"}),
) -> tuple[Any, list[str]]:
    """Return the outcome of a call, and everything that a model may read about it."""
    outcome = await guard.dispatch("send", dict(args), function, **options)
    assert isinstance(outcome, ToolDenied | ToolFailure), outcome
    reply = make_reply(outcome, replace_text)
    texts = [outcome_to_model_content(outcome), reply.text or str(reply.error or reply.value)]
    with pytest.raises((EdictumDenied, EdictumToolError)) as raised:
        await guard.run("send", dict(args), function, **options)
    return outcome, [*texts, str(raised.value)]


def assert_neutral(text: str) -> None:
    shown = text.replace("\\/", "/")
    found = [it for it in SECRETS_OF_OPERATORS if it in shown]
    assert not found, f"the model reads {found} in {text!r}"


@pytest.mark.parametrize("part", FAILING)
async def test_a_model_reads_nothing_about_the_infrastructure(
    part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in a message, nor in an adapter's reply, nor in the text of what ``run`` raises."""
    caplog.set_level(logging.WARNING)
    made, options = FAILING[part](tmp_path)
    try:
        guard = Edictum(**made)
    except Exception as exc:
        pytest.fail(f"the guard was not made: {exc}")
    outcome, texts = await read_by_a_model(guard, options)
    for text in texts:
        assert_neutral(text)
        assert "try again later" in text or "before you call it again" in text or "lost" in text
    details = outcome.details if isinstance(outcome, ToolDenied) else outcome.error
    assert 20 < len(details) < 500
    assert "object at 0x" not in details, "a driver's objects tell an operator nothing"
    assert details not in texts, "the operator is told more than the model"


def fill_folder(folder: Path) -> Path:
    """Return a folder of artifacts whose index cannot be opened."""
    (folder / DATABASE / ".index.db").mkdir(parents=True)
    return folder / DATABASE


ARTIFACTS: dict[str, Callable[[Path], Any]] = {
    "directory": fill_folder,
    "Redis": lambda _: f"redis://{USER}:pw@127.0.0.1:{PORT}/0",
    "PostgreSQL": lambda _: f"postgresql://{USER}:pw@127.0.0.1:{PORT}/{DATABASE}",
}


@pytest.mark.parametrize("place", ARTIFACTS)
async def test_a_model_reads_nothing_about_the_store_of_artifacts(
    place: str, tmp_path: Path
) -> None:
    """Neither when an output is too large and cannot be stored, nor when it reads one."""
    store = ArtifactStore(ARTIFACTS[place](tmp_path))
    with pytest.raises(ArtifactError) as raised:
        store.store("s", "text", "send")
    assert any(it in str(raised.value) for it in SECRETS_OF_OPERATORS)
    turn = BoundedToolExecutor([tool("Write.")(write_much)], artifact_store=store)
    state = TurnState("s", TurnBudget.create(30))
    outcome = await turn.aexecute(ToolCallRequest("c", "write_much", {}), state)
    assert isinstance(outcome, ToolExecutionResult)
    assert "ArtifactError" in outcome.notes[0]
    assert_neutral(outcome_to_model_content(outcome))

    def read(artifact_id: str) -> Any:
        return store.store("s", artifact_id, "send")  # any use of the store

    outcome, texts = await read_by_a_model(Edictum(), {}, read, {"artifact_id": "art_1"})
    assert str(raised.value)[:30] in outcome.error
    for text in texts:
        assert_neutral(text)
        assert "try again later" in text


def write_much() -> str:
    return "x" * 100_000


async def test_a_model_reads_nothing_about_parts_that_fail_after_its_call(tmp_path: Path) -> None:
    """What the audit and the ledger have to say then is in the notes."""
    path = tmp_path / DATABASE / "audit.jsonl"
    guard = Edictum(
        audit_sink=FileAuditSink(path), backend=f"sqlite:///{tmp_path}/{DATABASE}.db?wait=2"
    )

    def work() -> str:
        path.unlink()
        path.mkdir()
        (tmp_path / f"{DATABASE}.db").unlink()
        return "done"

    outcome = await guard.dispatch("send", {}, work)
    assert isinstance(outcome, ToolExecutionResult)
    assert any(DATABASE in note for note in outcome.notes)
    assert_neutral(outcome_to_model_content(outcome))
    assert_neutral(str(make_reply(outcome, replace_text).text))
    with contextlib.suppress(Exception):
        await guard.close()


async def test_an_engine_that_cannot_start_a_call_is_logged_and_the_call_is_not_retryable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model cannot mend it, and the operator has to hear of it."""
    caplog.set_level(logging.ERROR, "edictum")
    outcome = await Edictum().dispatch("send", {}, lambda: None, run_in="process")
    assert isinstance(outcome, ToolFailure)
    assert outcome.retryable is False
    assert "was not started" in caplog.text
    assert '"retryable": false' in outcome_to_model_content(outcome)


# --- What contracts, hooks and other user-supplied code raise ---------------------------------------


class Away(Exception):
    """What the driver of a database raises."""


def fail(*_args: Any, **_given: Any) -> Any:
    raise Away(f"{HOST}:{PORT} user={USER} database={DATABASE} refused the connection")


async def afail(*_args: Any, **_given: Any) -> Any:
    fail()


def bundle(contract: str, *, tools: str = "{}", success: str = "[]") -> str:
    return f"""\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: shop}}
tools: {tools}
success: {success}
contracts:
  - id: owners
    mode: enforce
    {contract}
"""


def from_yaml(contract: str, **more: str) -> Edictum:
    return Edictum.from_yaml_string(
        bundle(contract, **more),
        custom_selectors={"order": fail},
        custom_operators={"is_known": fail},
    )


DENY = "then: {effect: deny, message: Not yours.}"
HARMLESS = "type: pre\n    tool: other\n    when: {args.to: {equals: x}}\n    " + DENY
OWNER = "{order.owner: {equals: ada}}"


def yaml_contract(kind: str, when: str, then: str = DENY) -> str:
    return f"type: {kind}\n    tool: send\n    when: {when}\n    {then}"


def in_a_selector_of_a_limit() -> Edictum:
    limit = f"type: session\n    scope: order.owner\n    limits: {{max_tool_calls: 5}}\n    {DENY}"
    return from_yaml(limit)


def in_a_message() -> Edictum:
    then = 'then: {effect: deny, message: "Of {order.owner}."}'
    return from_yaml(yaml_contract("pre", "{args.to: {equals: ada}}", then))


def in_a_sandbox() -> Edictum:
    sandbox = 'type: sandbox\n    tool: send\n    within: ["/srv/{order.owner}"]'
    return from_yaml(f"{sandbox}\n    message: 'Outside: {{violation}}'")


def with_hook(callback: Callable[..., Any], when: Callable[..., Any] | None = None) -> Edictum:
    return Edictum(hooks=[HookRegistration("before", "send", callback, when)])


OWNERS = "owners"
# where user-supplied code raises: the guard, the options of the call, and what the model reads of it
RAISING: dict[str, tuple[Callable[[], Edictum], dict[str, Any], str]] = {
    "precondition": (lambda: Edictum(contracts=[precondition("*", id=OWNERS)(fail)]), {}, OWNERS),
    "async precondition": (
        lambda: Edictum(contracts=[precondition("*", id=OWNERS)(afail)]),
        {},
        OWNERS,
    ),
    "approval contract": (
        lambda: Edictum(contracts=[precondition("*", id=OWNERS, effect="approve")(fail)]),
        {},
        OWNERS,
    ),
    "when= of a contract": (
        lambda: Edictum(
            contracts=[precondition("*", when=fail, id=OWNERS)(lambda call: Verdict.pass_())]
        ),
        {},
        OWNERS,
    ),
    "session contract": (
        lambda: Edictum(contracts=[session_contract(id=OWNERS)(fail)]),
        {},
        OWNERS,
    ),
    "hook": (lambda: with_hook(fail), {}, "hook 'fail'"),
    "async hook": (lambda: with_hook(afail), {}, "hook 'afail'"),
    "when= of a hook": (lambda: with_hook(lambda call: None, fail), {}, "hook '<lambda>'"),
    "selector": (lambda: from_yaml(yaml_contract("pre", OWNER)), {}, OWNERS),
    "selector, asynchronous": (
        lambda: Edictum.from_yaml_string(
            bundle(yaml_contract("pre", OWNER)), custom_selectors={"order": afail}
        ),
        {},
        OWNERS,
    ),
    "selector in any_of": (
        lambda: from_yaml(
            yaml_contract("pre", f"{{any: [{{args.to: {{equals: bob}}}}, {OWNER}]}}")
        ),
        {},
        OWNERS,
    ),
    "selector in a message": (in_a_message, {}, "Of "),
    "selector, session": (
        lambda: from_yaml(
            yaml_contract("pre", f"{{all: [{{session.attempts: {{gte: 0}}}}, {OWNER}]}}")
        ),
        {},
        OWNERS,
    ),
    "operator": (
        lambda: from_yaml(yaml_contract("pre", "{args.to: {is_known: true}}")),
        {},
        OWNERS,
    ),
    "sandbox": (in_a_sandbox, {}, OWNERS),
    "scope of a limit": (in_a_selector_of_a_limit, {}, OWNERS),
    "when of a limit": (
        lambda: Edictum(limits=[ScopedLimits(id=OWNERS, when=fail, max_tool_calls=5)]),
        {},
        OWNERS,
    ),
    "amounts": (Edictum, {"amounts": fail}, "rule for 'amounts'"),
    "amount of a tool": (
        lambda: from_yaml(HARMLESS, tools="{send: {amounts: {cost: order.cost}}}"),
        {},
        "rule for 'amounts'",
    ),
    "principal resolver": (lambda: Edictum(principal_resolver=fail), {}, "identity service"),
    "success check": (lambda: Edictum(success_check=fail), {}, "whether it succeeded"),
    "asynchronous success check": (
        lambda: Edictum(success_check=afail),
        {},
        "whether it succeeded",
    ),
    "success rule": (
        lambda: from_yaml(HARMLESS, success=f"[{{id: ok, tool: send, failure_when: {OWNER}}}]"),
        {},
        "whether it succeeded",
    ),
}


@pytest.mark.parametrize("place", RAISING)
async def test_a_model_reads_nothing_that_user_supplied_code_raised(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads which contract or hook it was: that is policy. Operators read the rest."""
    make, options, named = RAISING[place]
    guard = make()
    outcome, texts = await read_by_a_model(guard, options, lambda to: {"sent": to})
    assert all(named in text for text in (texts[0], texts[-1]))
    for text in texts:
        assert_neutral(text)
    if not outcome.policy_error:
        assert place == "selector in a message", "it stands without what cannot be filled in"
        return
    details = outcome.details if isinstance(outcome, ToolDenied) else outcome.error
    for said in (details, repr(guard.local_sink.events), caplog.text):
        assert HOST in said
    stored = outcome_from_dict(json.loads(json.dumps(outcome_to_dict(outcome))))
    assert outcome_to_model_content(stored) == outcome_to_model_content(outcome)


# What judges a result: the model reads a notice in place of it.
AFTER: dict[str, Callable[[], Edictum]] = {
    "postcondition": lambda: Edictum(contracts=[postcondition("*", effect="deny")(fail)]),
    "postcondition, asynchronous": lambda: Edictum(
        contracts=[postcondition("*", effect="redact")(afail)]
    ),
    "postcondition that warns": lambda: Edictum(contracts=[postcondition("*")(fail)]),
    "selector of the call": lambda: from_yaml(yaml_contract("post", OWNER)),
    "operator": lambda: from_yaml(yaml_contract("post", "{result.sent: {is_known: true}}")),
    "redaction": lambda: Edictum(
        contracts=[
            postcondition("*", effect="redact", redact=fail)(
                lambda _call, _value: Verdict.fail("x")
            )
        ]
    ),
    "after-hook": lambda: Edictum(hooks=[HookRegistration("after", "send", fail)]),
    "on_allow": lambda: Edictum(on_allow=fail),
}


@pytest.mark.parametrize("place", AFTER)
async def test_a_model_reads_nothing_that_judges_of_results_raised(place: str) -> None:
    """Neither in the notice in place of a result that is hidden."""
    outcome = await AFTER[place]().dispatch("send", {"to": "ada"}, lambda to: {"sent": to})
    assert isinstance(outcome, ToolExecutionResult)
    assert_neutral(outcome_to_model_content(outcome))
    assert_neutral(str(make_reply(outcome, replace_text).get()))


class Address(BaseModel):
    host: str

    @field_validator("host")
    @classmethod
    def is_known(cls, value: str) -> str:
        return str(fail())


async def test_a_model_reads_nothing_that_a_validator_of_arguments_raised() -> None:
    """But for a ValueError, which is what pydantic tells whoever has sent the value."""

    def send(to: Address) -> str:
        return "sent"

    made = tool("Send.")(send)
    turn = BoundedToolExecutor([made])
    state = TurnState("s", TurnBudget.create(30))
    outcome = await turn.aexecute(ToolCallRequest("c", "send", {"to": {"host": "a"}}), state)
    assert isinstance(outcome, ToolDenied)
    assert HOST in outcome.details
    assert_neutral(outcome_to_model_content(outcome))
    assert "The check of the arguments is not available" in outcome_to_model_content(outcome)


async def test_a_model_reads_nothing_that_the_description_of_a_caller_raised() -> None:
    """Such as a function that looks up a principal."""
    turn = BoundedToolExecutor([tool("Write.")(write_much)], principal=fail)
    state = TurnState("s", TurnBudget.create(30))
    outcome = await turn.aexecute(ToolCallRequest("c", "write_much", {}), state)
    assert isinstance(outcome, ToolDenied)
    assert HOST in outcome.details
    assert_neutral(outcome_to_model_content(outcome))


def test_what_a_contract_says_reaches_the_model() -> None:
    """Its messages do, and what this library says is wrong with a call; not what it raised."""

    @precondition("send")
    def says(call: Any) -> Verdict:
        return Verdict.fail("The amount is missing.", policy_error=True)

    outcome = Edictum(contracts=[says]).dispatch_sync("send", {}, lambda: None)
    assert "The amount is missing." in outcome_to_model_content(outcome)
    guard = from_yaml(yaml_contract("pre", "{args.amount: {gt: 5}}"))
    outcome = guard.dispatch_sync("send", {"amount": "7"}, lambda amount: None)
    assert "args.amount is text; a number is needed" in outcome_to_model_content(outcome)
    guard = from_yaml(HARMLESS, tools="{send: {amounts: {cost: args.amount}}}")
    outcome = guard.dispatch_sync("send", {}, lambda: None)
    assert "args.amount is missing" in outcome_to_model_content(outcome)


@pytest.mark.parametrize("amount", ["metadata.dsn", "order.dsn"])
def test_an_amount_that_the_model_did_not_send_is_not_quoted(amount: str) -> None:
    """Only its type is named."""
    guard = Edictum.from_yaml_string(
        bundle(HARMLESS, tools=f"{{send: {{amounts: {{cost: {amount}}}}}}}"),
        custom_selectors={"order": lambda call: {"dsn": HOST}},
    )
    outcome = guard.dispatch_sync("send", {}, lambda: None, metadata={"dsn": HOST})
    assert f"{amount} is of type str, not a number" in outcome_to_model_content(outcome)
    assert HOST not in outcome_to_model_content(outcome)
