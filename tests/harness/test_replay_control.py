"""ReplayControl: the documented verbs, the atomic begin, stale reads, and keys that never raise."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum.core.freeze import freeze_args
from edictum.core.values import canonical, digest, identity
from edictum.harness import ReplayControl, ToolSpec
from edictum.harness.replay_control import Done, InFlight, New
from edictum.outcomes import ToolExecutionResult, ToolFailure
from support.effort import effort

OK = ToolExecutionResult("c", "t", {"a": 1}, 0)


def spec(name: str = "local_search", effect: str = "read", **settings: Any) -> ToolSpec:
    return ToolSpec(name=name, side_effect=effect, **{"idempotent": True, **settings})  # type: ignore[arg-type]


def test_the_table_of_the_published_design() -> None:
    replay, search, send = (
        ReplayControl(),
        spec(),
        spec("send_email", "irreversible", idempotent=False),
    )
    assert replay.should_skip("local_search", {"q": 1}, search) == (False, "")
    for record in (replay.record_failure, replay.record_timeout, replay.record_denied):
        record("local_search", {"q": 1}, search)
        assert replay.should_skip("local_search", {"q": 1}, search)[0] is False
    replay.record_success("local_search", {"q": 1}, search)
    replay.record_success("local_search", {"q": 1}, search)
    assert replay.should_skip("local_search", {"q": 1}, search)[0] is True
    assert replay.should_skip("local_search", {"q": 2}, search)[0] is False
    replay.record_success("send_email", {}, send)
    assert replay.should_skip("send_email", {}, send)[0] is False
    assert replay.should_skip("unknown", {}, None) == (False, "")
    assert replay.history_size() == 2


def test_a_tool_that_nobody_knows_is_not_recorded() -> None:
    replay = ReplayControl()
    for record in (
        replay.record_success,
        replay.record_failure,
        replay.record_timeout,
        replay.record_denied,
    ):
        record("unknown", {}, None)
    assert replay.history_size() == 0


def test_begin_is_new_then_in_flight_then_done() -> None:
    replay, search = ReplayControl(), spec()
    first = replay.begin(search, {"q": 1})
    assert isinstance(first, New)
    second = replay.begin(search, {"q": 1})
    assert isinstance(second, InFlight)
    replay.finish(first, search, {"q": 1}, OK)
    shared = second.outcome.result(1)
    assert isinstance(shared, ToolExecutionResult)
    assert shared.turn.replayed
    assert shared.output == {"a": 1, "replayed": True}
    assert replay.begin(search, {"q": 1}) == Done(first.key, OK)


def test_of_many_threads_exactly_one_begins() -> None:
    replay, search = ReplayControl(), spec()
    begun: list[Any] = []
    start = threading.Barrier(16)

    def go() -> None:
        start.wait()
        begun.append(replay.begin(search, {"q": 1}))

    threads = [threading.Thread(target=go) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(each).__name__ for each in begun) == ["InFlight"] * 15 + ["New"]


def test_what_failed_can_be_tried_again_and_those_who_waited_share_the_failure() -> None:
    replay, search = ReplayControl(), spec()
    first = replay.begin(search, {})
    waiting = replay.begin(search, {})
    assert isinstance(first, New)
    assert isinstance(waiting, InFlight)
    replay.finish(first, search, {}, ToolFailure("c", "t", "broken"))
    assert isinstance(waiting.outcome.result(1), ToolFailure)
    assert isinstance(replay.begin(search, {}), New)


def test_what_was_denied_is_not_shared() -> None:
    replay, search = ReplayControl(), spec()
    first, waiting = replay.begin(search, {}), replay.begin(search, {})
    assert isinstance(first, New)
    assert isinstance(waiting, InFlight)
    replay.finish(first, search, {}, None)
    assert waiting.outcome.result(1) is None


def test_a_record_from_outside_does_not_overrule_how_a_call_ended() -> None:
    replay, search = ReplayControl(), spec()
    begun = replay.begin(search, {})
    assert isinstance(begun, New)
    replay.finish(begun, search, {}, ToolFailure("c", "t", "broken"))
    replay.record_success("local_search", {}, search)
    assert replay.should_skip("local_search", {}, search)[0] is False


def test_a_write_makes_earlier_reads_of_its_resource_stale_and_no_others() -> None:
    replay = ReplayControl()
    read_a, read_b = (spec(f"read_{name}", resource_keys=[name]) for name in "ab")
    read_any = spec("read_any")
    write_a = spec("write_a", "write", resource_keys=["a"])
    pure = spec("pure", "pure")
    for each in (read_a, read_b, read_any, pure):
        replay.record_success(each.name, {}, each)
    replay.record_write(write_a, {})
    assert [
        replay.should_skip(each.name, {}, each)[0] for each in (read_a, read_b, read_any, pure)
    ] == [False, True, False, True]


def test_a_write_to_who_knows_where_makes_all_reads_stale() -> None:
    replay, read = ReplayControl(), spec(resource_keys=["a"])
    replay.record_success(read.name, {}, read)
    replay.record_write(spec("write", "write"), {})
    assert replay.should_skip(read.name, {}, read)[0] is False


def test_an_idempotent_write_is_pointless_to_repeat_until_something_else_is_written() -> None:
    replay, put = ReplayControl(), spec("put", "write", resource_keys=["a"])
    begun = replay.begin(put, {"v": 1})
    assert isinstance(begun, New)
    replay.record_write(put, {"v": 1})
    replay.record_write(put, {"v": 1})
    replay.finish(begun, put, {"v": 1}, OK)
    assert isinstance(replay.begin(put, {"v": 1}), Done)
    replay.record_write(put, {"v": 2})
    assert isinstance(replay.begin(put, {"v": 1}), New)


def test_a_result_can_age(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, quick = ReplayControl(), spec(cache_ttl_s=0.000001)
    replay.record_success(quick.name, {}, quick)
    assert replay.should_skip(quick.name, {}, quick)[0] is False


def test_identity_and_principal_are_part_of_the_key() -> None:
    replay, search = ReplayControl(), spec(identity=("q",))
    assert isinstance(replay.begin(search, {"q": 1, "trace": "x"}), New)
    assert isinstance(replay.begin(search, {"q": 1, "trace": "y"}), InFlight)
    assert isinstance(replay.begin(search, {"q": 1}, principal="somebody else"), New)


def test_the_history_is_bounded() -> None:
    replay, search = ReplayControl(max_history=10), spec()
    running = replay.begin(search, {"q": "running"})
    for number in range(50):
        replay.record_success(search.name, {"q": number}, search)
    assert replay.history_size() == 10
    assert isinstance(running, New)
    assert isinstance(replay.begin(search, {"q": "running"}), InFlight), (
        "what runs is not forgotten"
    )


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class Hostile(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no")


def test_keys_tell_apart_what_differs_and_join_what_does_not() -> None:
    assert canonical({"a": 1, "b": 2.0}) == canonical({"b": 2, "a": 1.0})
    assert canonical("e\u0301") == canonical("\u00e9")
    different = [
        1,
        "1",
        True,
        None,
        "None",
        1.5,
        [1],
        [[1]],
        {"1": 2},
        {1: 2},
        (),
        {},
        b"1",
        {1},
        {1, 2},
        datetime.date(2026, 1, 1),
        float("nan"),
    ]
    assert len({canonical(value) for value in different}) == len(different)
    assert canonical(["a", "b"]) != canonical(["a:b"])
    assert digest("ab", "c") != digest("a", "bc")


def test_keys_never_raise() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (
        Unprintable(),
        Hostile(a=1),
        circle,
        {Unprintable(): 1},
        {1: 1, "a": 2, None: 3},
        10**5000,
        "\ud800",
    ):
        assert canonical(value)
        digest(canonical(value))
        hash(identity(value))
    assert identity(freeze_args({1: 2})) == identity({1: 2}) != identity({"1": 2})


NAMES = st.sampled_from(["a", "b", "ab", "K", "\u212a", "\u00e9", "e\u0301"])
VALUES = st.sampled_from(
    [
        0,
        1,
        True,
        False,
        1.0,
        -0.0,
        1.5,
        float("nan"),
        float("inf"),
        10**30,
        1e30,
        None,
        "",
        "1",
        "K",
        "\u212a",
        "\u00e9",
        "e\u0301",
        "x" * 300,
        "y" * 300,
        b"1",
        1j,
        [1],
        [True],
        {"a": 1},
    ]
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


@pytest.mark.soak
@settings(max_examples=effort(166, soak=10_000))
@given(
    ARGUMENTS, ARGUMENTS, st.sampled_from([dict, freeze_args]), st.sampled_from([dict, freeze_args])
)
def test_identities_are_equal_where_the_canonical_texts_are(
    one: Any, other: Any, kept: Any, also_kept: Any
) -> None:
    """However they are kept: an identity is the quicker of the two, not another opinion."""
    assert (identity(kept(one)) == identity(also_kept(other))) is (
        canonical(one) == canonical(other)
    )
    hash(identity(kept(one)))


@given(ARGUMENTS, st.randoms(use_true_random=False))
def test_an_identity_does_not_depend_on_how_the_arguments_were_written(
    arguments: dict[str, Any], random: Any
) -> None:
    names = random.sample([*arguments], len(arguments))
    written = {name: arguments[name] for name in names}
    written = {
        name: float(value) if type(value) is int and value < 100 else value
        for name, value in written.items()
    }
    assert identity(freeze_args(arguments)) == identity(written)


class Sudden(ReplayControl):
    """A call that is finished by another thread in the moment in which somebody is about to wait
    for it.
    """

    first: New

    def _get_waiting(self, slot: New) -> Any:
        self.finish(self.first, spec(), {"q": 1}, OK)
        return super()._get_waiting(slot)


def test_nobody_waits_for_a_call_that_has_ended_meanwhile() -> None:
    replay, search = Sudden(), spec()
    replay.first = replay.begin(search, {"q": 1})  # type: ignore[assignment]
    assert replay.begin(search, {"q": 1}) == Done(replay.first.key, OK)


class EndsFirst:
    """A lock that somebody else gets first: the first call ends before the second has a look at
    it.
    """

    def __init__(self, replay: ReplayControl, end: Callable[[], None]) -> None:
        self._lock, self._replay, self._end = replay._lock, replay, end

    def __enter__(self) -> None:
        self._replay._lock = self._lock
        self._end()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def test_a_write_that_ends_while_the_same_one_is_looked_for_is_done() -> None:
    replay, put = ReplayControl(), spec("put", "write", resource_keys=["notes"])
    first = replay.begin(put, {"x": 1})
    assert isinstance(first, New)
    replay.record_write(put, {"x": 1})

    def end() -> None:
        replay.record_write(put, {"x": 1})
        replay.finish(first, put, {"x": 1}, OK)

    replay._lock = EndsFirst(replay, end)  # type: ignore[assignment]
    assert replay.begin(put, {"x": 1}) == Done(first.key, OK)


def test_of_many_that_begin_at_once_one_is_new_even_while_the_history_is_full() -> None:
    replay, search = ReplayControl(max_history=5), spec()
    begun: list[Any] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for number in range(300):
            call = replay.begin(search, {"q": number})
            begun.append((number, type(call)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, kind in begun if kind is New) == [*range(300)]
    assert len(begun) == 8 * 300


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    )
)
def test_equal_values_have_equal_keys(value: Any) -> None:
    assert canonical(value) == canonical(value)
    if isinstance(value, dict):
        assert canonical(dict(reversed(value.items()))) == canonical(value)
