"""What a model reads when a part of the gate fails: no host, port, path, user name, driver text."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumDenied,
    EdictumToolError,
    FileAuditSink,
    Verdict,
    outcome_to_model_content,
    precondition,
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
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure

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


def unusable_python() -> ProcessPool:
    """A pool whose workers cannot start: their interpreter finds no standard library."""
    return ProcessPool(1, env={"PYTHONHOME": f"/opt/{DATABASE}"})


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
    "process engine": lambda _: ({}, {"run_in": unusable_python(), "timeout_s": 20}),
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
    texts = [outcome_to_model_content(outcome), reply.text or str(reply.error)]
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
        audit_sink=FileAuditSink(path), backend=f"sqlite:///{tmp_path}/{DATABASE}.db?wait=0.3"
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


def test_what_a_contract_says_reaches_the_model() -> None:
    """Only the parts of the gate are kept from it: the mistake of a contract is its business."""

    @precondition("send")
    def broken(call: Any) -> Verdict:
        raise KeyError("amount")

    outcome = Edictum(contracts=[broken]).dispatch_sync("send", {}, lambda: None)
    assert "amount" in outcome_to_model_content(outcome)
