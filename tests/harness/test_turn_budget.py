"""TurnBudget and DeadlineToken."""

from __future__ import annotations

import pickle
import threading
import time

import pytest
from turns import FakeTimer

from edictum import EdictumConfigError
from edictum.harness import DeadlineExceeded, DeadlineToken, TurnBudget


def test_create_sets_one_absolute_deadline_and_keeps_a_reserve() -> None:
    timer = FakeTimer()
    budget = TurnBudget.create(60, timer=timer)
    assert budget.deadline == 1_060.0
    assert budget.reserve_s == 5.0
    assert TurnBudget.create(10, timer=timer).reserve_s == 1.0
    assert budget.max_tool_calls == budget.max_steps == 6


def test_a_tool_gets_the_smaller_of_its_cap_and_what_the_turn_has_left_without_a_floor() -> None:
    timer = FakeTimer()
    budget = TurnBudget.create(60, timer=timer)
    assert budget.tool_deadline(45) == 1_045.0
    timer.advance(54)
    assert budget.per_tool_remaining_s(45) == pytest.approx(1.0)
    timer.advance(3)
    assert budget.per_tool_remaining_s(45) == 0.0
    assert budget.remaining_s() == pytest.approx(3.0)
    timer.advance(3)
    assert budget.is_expired()


def test_the_clock_stands_while_a_person_decides() -> None:
    timer = FakeTimer()
    budget = TurnBudget.create(10, timer=timer)
    budget.pause()
    budget.pause()
    timer.advance(3600)
    assert budget.remaining_s() == 10.0
    budget.resume()
    timer.advance(5)
    assert budget.remaining_s() == 10.0, "another call is still waiting for its person"
    budget.resume()
    assert budget.remaining_s() == 10.0
    timer.advance(4)
    assert budget.remaining_s() == 6.0
    budget.resume()
    assert budget.remaining_s() == 6.0


def test_claims_are_atomic() -> None:
    budget = TurnBudget.create(60, max_steps=50, max_tool_calls=70)
    granted: list[bool] = []
    threads = [
        threading.Thread(target=lambda: granted.extend(budget.claim_tool_call() for _ in range(20)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert granted.count(True) == 70
    assert [budget.claim_reflection() for _ in range(5)] == [True] * 4 + [False]
    assert sum(budget.claim_step() for _ in range(60)) == 50


def test_the_share_that_is_used_is_the_largest_of_time_steps_and_calls() -> None:
    timer = FakeTimer()
    budget = TurnBudget.create(100, max_steps=10, max_tool_calls=4, timer=timer)
    timer.advance(20)
    assert budget.used == pytest.approx(0.2)
    budget.claim_tool_call()
    budget.claim_tool_call()
    assert budget.used == 0.5
    assert TurnBudget.create(10, max_steps=0).used == 1.0


def test_the_snapshot_is_plain_data() -> None:
    before = time.time()
    snapshot = TurnBudget.create(60, timer=FakeTimer()).snapshot()
    assert snapshot["steps_max"] == snapshot["tool_calls_max"] == 6
    assert snapshot["expired"] is snapshot["paused"] is False
    assert before - 0.001 <= snapshot["ends_at"] - 60 <= time.time() + 0.001  # for rounding


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": 0},
        {"timeout_s": True},
        {"max_steps": -1},
        {"reserve_s": 60},
        {"max_tool_calls": 1.5},
    ],
)
def test_a_wrong_budget_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(EdictumConfigError, match="TurnBudget"):
        TurnBudget.create(**wrong)  # type: ignore[arg-type]


def test_a_token_expires_by_time_and_by_cancellation() -> None:
    timer = FakeTimer()
    token = DeadlineToken.from_budget(TurnBudget.create(60, timer=timer), cap_s=10)
    assert token.remaining_s() == 10.0
    token.check()
    timer.advance(10)
    assert token.is_expired()
    other = DeadlineToken.from_budget(TurnBudget.create(60, timer=timer))
    other.cancel()
    assert other.is_expired()
    assert other.remaining_s() == 0.0
    with pytest.raises(DeadlineExceeded):
        other.check()


def test_a_token_can_be_sent_to_another_process() -> None:
    token = DeadlineToken(time.perf_counter() + 60)
    assert pickle.loads(pickle.dumps(token)).deadline_s == token.deadline_s
    assert DeadlineToken.current() is None
