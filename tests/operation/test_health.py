"""``guard.check()``: each part is asked, within a time limit, and says what is wrong in a sentence."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum, EdictumConfigError, EdictumInputError, ToolDenied
from edictum.audit import FileAuditSink
from edictum.sessions.memory import MemoryLedger
from edictum.testing import FakeClock

PARTS = ["ledger", "audit", "approvals", "engine", "policy", "clock"]
AWAY = "redis://127.0.0.1:1/0"  # nothing listens there


async def test_all_parts_of_a_new_guard_are_well() -> None:
    """Every part has a sentence."""
    health = await Edictum(policy_version="v7").check()
    assert (health.ok, health.policy_version) == (True, "v7")
    assert [part.name for part in health.parts] == PARTS
    assert all(part.ok and part.message.endswith(".") for part in health.parts)
    assert "v7" in health["policy"].message
    assert health.to_dict()["parts"][0]["name"] == "ledger"


def test_a_synchronous_program_can_ask_too() -> None:
    """In any thread, inside or outside a loop."""
    assert Edictum().check_sync().ok


async def test_nothing_is_counted_or_recorded(tmp_path: Path) -> None:
    """Asking often changes nothing."""
    guard = Edictum(
        backend=f"sqlite:///{tmp_path}/s.db", audit_sink=FileAuditSink(tmp_path / "a.jsonl")
    )
    for _ in range(3):
        assert (await guard.check()).ok
    assert guard.local_sink.events == []
    assert (tmp_path / "a.jsonl").read_text() == ""
    assert await guard.backend.sessions() == []  # type: ignore[attr-defined]  # of stores
    await guard.close()


async def test_a_store_that_is_away_is_named() -> None:
    """The ledger's part fails, the others do not."""
    guard = Edictum(backend=f"{AWAY}?wait=0.2s")
    health = await guard.check()
    assert [part.name for part in health.parts if not part.ok] == ["ledger"]
    assert not health.ok
    assert "redis://127.0.0.1:1/0" in health["ledger"].message
    assert guard.stats().circuit == "open"
    assert "127.0.0.1:1" in str(guard.stats().circuit_reason)
    await guard.close()


class Hanging(MemoryLedger):
    async def ping(self) -> None:
        await asyncio.sleep(60)


class HangingSink:
    def emit(self, event: Any) -> None: ...

    def check(self) -> None:
        time.sleep(1.0)


async def test_a_part_that_does_not_answer_is_not_waited_for() -> None:
    """Asynchronous or not; the parts are asked at the same time."""
    guard = Edictum(backend=Hanging(), audit_sink=HangingSink())
    health = await guard.check(timeout_s=0.1)
    failed = {part.name: part.message for part in health.parts if not part.ok}
    assert failed == dict.fromkeys(("ledger", "audit"), "No answer within 0.1 s.")


async def test_an_audit_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Before a call finds out."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    sinks = [FileAuditSink(tmp_path / "a.jsonl"), FileAuditSink(blocked / "b.jsonl")]
    guard = Edictum(audit_sink=sinks)
    health = await guard.check()
    assert (health["audit:0"].ok, health["audit:1"].ok) == (True, False)
    assert "b.jsonl" in health["audit:1"].message
    await guard.close()


class Moody:
    is_broken = True

    def emit(self, event: Any) -> None:
        if self.is_broken:
            raise OSError("the collector is away")


async def test_a_sink_without_a_check_is_judged_by_its_newest_event() -> None:
    """Not well while it fails, well again once it takes an event."""
    sink = Moody()
    guard = Edictum(audit_sink=sink)
    assert (await guard.check()).ok
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolDenied)
    assert "the collector is away" in (await guard.check())["audit"].message
    sink.is_broken = False
    await guard.run("t", {}, lambda: 1)
    assert (await guard.check()).ok


class Checked(Moody):
    def check(self) -> None:
        """Raise nothing: what is wrong shows only when an event is written."""


async def test_a_sink_that_fails_is_not_well_whatever_its_check_says() -> None:
    """Well again once it takes an event."""
    sink = Checked()
    guard = Edictum(audit_sink=sink)
    assert (await guard.check()).ok
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolDenied)
    assert "the collector is away" in (await guard.check())["audit"].message
    sink.is_broken = False
    await guard.run("t", {}, lambda: 1)
    assert (await guard.check())["audit"].message == "Checked can be written."


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_file_that_can_be_opened_but_not_written_is_not_well(tmp_path: Path) -> None:
    """Every call is denied, though the disk of its folder has room."""
    path = tmp_path / "audit.jsonl"
    path.symlink_to("/dev/full")
    guard = Edictum(audit_sink=FileAuditSink(path))
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolDenied)
    audit = (await guard.check())["audit"]
    assert (audit.ok, "No space left on device" in audit.message) == (False, True)
    path.unlink()
    await guard.run("t", {}, lambda: 1)
    assert (await guard.check()).ok
    await guard.close()


class Engine:
    def run(self, effect: Any) -> Any: ...

    def run_sync(self, effect: Any) -> Any: ...

    def check(self, wait_s: float) -> None:
        raise ConnectionError("no worker answers")


class Approvals:
    async def request_approval(self, **asked: Any) -> Any: ...

    async def wait_for_decision(self, **asked: Any) -> Any: ...

    async def check(self) -> None:
        raise ConnectionError("the desk is closed")


async def test_engines_and_approval_backends_are_asked() -> None:
    """By their ``check``."""
    guard = Edictum(execution=Engine(), approval_backend=Approvals())  # type: ignore[arg-type]
    health = await guard.check()
    assert "no worker answers" in health["engine"].message
    assert "the desk is closed" in health["approvals"].message


async def test_a_clock_that_jumps_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and leases of stores that go by it are wrong by as much."""
    guard, now = Edictum(), time.time
    monkeypatch.setattr(time, "time", lambda: now() + 7_200)
    health = await guard.check()
    assert "+7200 s" in health["clock"].message
    assert not health["clock"].ok
    assert (await guard.check()).ok
    assert (await Edictum(clock=FakeClock()).check())["clock"].ok


# --- At the start ---------------------------------------------------------------------------------


def test_a_store_that_is_away_is_said_when_the_guard_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line, at ERROR, that names the store."""
    Edictum(backend=f"{AWAY}?wait=0.2s")
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.levelname for record in lines] == ["ERROR"]
    assert vars(lines[0])["edictum_event"] == "ledger.unavailable"
    assert AWAY in vars(lines[0])["store"]
    assert "Calls are denied" in lines[0].getMessage()


def test_require_store_refuses_to_start() -> None:
    """In Python, for a URL and for a ledger, and in a bundle."""
    with pytest.raises(EdictumConfigError, match=r"redis://127\.0\.0\.1:1/0 cannot be used"):
        Edictum(backend=f"{AWAY}?wait=0.2s", require_store=True)
    bundle = (
        "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: b}\n"
        "defaults: {mode: enforce}\n"
        f"session: {{store: '{AWAY}?wait=0.2s', require_store: true}}\ncontracts: []\n"
    )
    with pytest.raises(EdictumConfigError, match="require_store"):
        Edictum.from_yaml_string(bundle)


def test_require_store_is_content_with_a_store_that_answers(tmp_path: Path) -> None:
    """A guard is made as without it."""
    assert Edictum(require_store=True).run_sync("t", {}, lambda: 1) == 1
    guard = Edictum(backend=f"sqlite:///{tmp_path}/s.db", require_store=True)
    assert guard.run_sync("t", {}, lambda: 1) == 1


# --- A database that is not there any more --------------------------------------------------------


async def test_a_sqlite_file_that_was_deleted_or_replaced_is_noticed(tmp_path: Path) -> None:
    """Calls are denied: an agent that deletes the file does not reset its limits. The same file,
    back in its place, is used again.
    """
    path, aside = tmp_path / "s.db", tmp_path / "aside.db"
    guard = Edictum(backend=f"sqlite:///{path}")
    await guard.run("t", {}, lambda: 1)
    path.rename(aside)
    outcome = await guard.dispatch("t", {}, lambda: 1)
    assert isinstance(outcome, ToolDenied)
    health = await guard.check()
    assert "was deleted or replaced" in health["ledger"].message
    assert not path.exists()
    path.write_bytes(b"")  # another file
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolDenied)
    path.unlink()
    aside.rename(path)
    for _ in range(100):
        if (await guard.check()).ok:
            break
        await asyncio.sleep(0.05)
    await guard.run("t", {}, lambda: 1)
    assert guard.session().snapshot().totals.successes == 2
    await guard.close()


@pytest.mark.parametrize("timeout_s", ["2", 0, -1, True, None, float("nan")])
def test_a_time_limit_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(EdictumInputError, match="timeout_s is"):
        Edictum().check_sync(timeout_s=timeout_s)


@pytest.mark.parametrize("required", ["yes", 1, None])
def test_whether_the_store_is_required_is_said_by_a_bool(required: Any) -> None:
    with pytest.raises(EdictumConfigError, match="require_store is"):
        Edictum(require_store=required)


def test_a_celery_url_without_celery_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "edictum.execution.celery", raising=False)
    monkeypatch.setitem(sys.modules, "celery", None)
    with pytest.raises(EdictumConfigError, match=r"'\.\[celery\]'"):
        Edictum(execution="celery://localhost:1/0")
