"""The ledger on a four-verb storage: shared by several guards, or failing in the midst of an
operation.
"""

from __future__ import annotations

import pytest

from edictum import (
    Edictum,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    session_contract,
)
from edictum.core.limits import Reservation
from edictum.sessions import MemoryBackend, StorageLedger
from edictum.testing.ledger import limits

TAKING = range(
    1,
    10,
    # the first increment of a call lists its tool, the next two count its attempt; then it takes
    # three slots in each of two tools
)


class Flaky(MemoryBackend):
    """Fails once, at one of its increments, before or after adding; or at its next reads."""

    def __init__(self, fails_at: int = 0) -> None:
        super().__init__()
        self.increments = 0
        self.fails_at = fails_at
        self.reads = True

    async def increment(self, key: str, amount: float = 1) -> float:
        self.increments += 1
        if self.increments == self.fails_at:
            raise ConnectionError("away for a moment")
        return await super().increment(key, amount)

    async def get(self, key: str) -> str | None:
        if not self.reads and ":tools:" not in key:
            raise ConnectionError("cannot be read")
        return await super().get(key)


@session_contract
def three_images(session):
    made = session.per_tool.get("image", 0)
    return Verdict.fail("Three images are enough.") if made >= 3 else Verdict.pass_()


def share_a_storage() -> tuple[MemoryBackend, Edictum, Edictum]:
    storage = MemoryBackend()
    return storage, *(Edictum(contracts=[three_images], backend=storage) for _ in range(2))


def call(guard: Edictum, tool: str) -> type:
    return type(guard.dispatch_sync(tool, {}, lambda: 1, session_id="s"))


def test_a_guard_sees_the_tools_that_another_one_called() -> None:
    _, first, second = share_a_storage()
    assert [call(first, "image") for _ in range(3)] == [ToolExecutionResult] * 3
    assert [call(guard, "text") for guard in (first, second)] == [ToolDenied] * 2
    assert second.session("s").per_tool["image"] == 3


def test_a_tool_that_several_guards_call_is_listed_once() -> None:
    storage, first, second = share_a_storage()
    for guard in (first, second, first, second):
        call(guard, "text")
    call(second, "image")
    assert second.session("s").per_tool == first.session("s").per_tool == {"image": 1, "text": 4}
    assert storage._values["s:s:tools:count"] == "2"


def test_a_reset_forgets_the_tools_that_another_guard_called() -> None:
    storage, first, second = share_a_storage()
    for _ in range(3):
        call(first, "image")
    second.session("s").reset()
    left = {key: value for key, value in storage._values.items() if "tools:" not in key}
    assert left == {}
    assert first.session("s").per_tool == {}
    assert [call(first, "image") for _ in range(4)] == [*[ToolExecutionResult] * 3, ToolDenied]
    assert second.session("s").per_tool == {"image": 3}


@pytest.mark.parametrize("fails_at", TAKING)
def test_a_failure_between_two_slots_costs_none(fails_at: int) -> None:
    guard = Edictum(backend=Flaky(fails_at), limits=OperationLimits(max_tool_calls=3))
    outcomes = [guard.dispatch_sync("work", {}, lambda: 1, session_id="s") for _ in range(5)]
    assert [type(it) for it in outcomes] == [ToolDenied, *[ToolExecutionResult] * 3, ToolDenied]
    totals = guard.session("s").snapshot().totals
    assert (totals.executions, totals.in_flight) == (3, 0)


async def test_a_failure_after_the_slots_were_taken_costs_none() -> None:
    storage = Flaky()
    ledger, bounds = StorageLedger(storage), limits(max_tool_calls=1)
    storage.reads = False
    with pytest.raises(ConnectionError):
        await ledger.reserve(Reservation("s", "a", ("", "work"), bounds))
    storage.reads = True
    assert (await ledger.reserve(Reservation("s", "b", ("", "work"), bounds))).granted


async def test_what_cannot_be_given_back_is_told_and_the_rest_is_given_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Flaky):
        async def increment(self, key: str, amount: float = 1) -> float:
            if amount < 0 and key.endswith(":execs"):
                raise ConnectionError("away again")
            return await super().increment(key, amount)

    storage = Broken(fails_at=7)
    with pytest.raises(ConnectionError, match="for a moment"):
        await StorageLedger(storage).reserve(Reservation("s", "a", ("", "work"), ()))
    assert "could not be given back: away again" in caplog.text
    assert [await storage.get(f"s:s:{name}") for name in ("execs", "succ", "fail")] == [
        "1",
        "0",
        "0",
    ]


async def test_a_look_writes_nothing() -> None:
    storage = MemoryBackend()
    look = Reservation(
        "s",
        "look",
        ("", "work"),
        limits(max_tool_calls=1),
        count_attempt=False,
        hold=False,
        per_tool=True,
    )
    assert (await StorageLedger(storage).reserve(look)).granted
    assert storage._values == {}


async def test_the_tools_of_few_sessions_are_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that serves many sessions does not grow; limits are in the storage and hold."""
    monkeypatch.setattr("edictum.sessions._four_verb_ledger.MAX_KNOWN_ENTRIES", 3)
    ledger = StorageLedger(MemoryBackend())
    bounds = OperationLimits(max_calls_per_tool={"work": 1})
    guard = Edictum(limits=bounds, backend=ledger)
    for number in range(10):
        await guard.run("work", {}, lambda: 1, session_id=f"s{number}")
    assert len(ledger._entries) <= 3
    for number in (0, 9):
        refused = await guard.dispatch("work", {}, lambda: 1, session_id=f"s{number}")
        assert isinstance(refused, ToolDenied)
    assert (await ledger.snapshot("s9")).per_tool["work"].executions == 1
