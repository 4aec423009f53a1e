"""Reload: the whole policy changes in one step, or not at all."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumDenied,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    Verdict,
    precondition,
)
from support.effort import effort
from support.waiting import wait_in_loop, wait_until

RELOADS = effort(300, soak=10_000)
HEAD = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: r}\n"


def denying(word: str, effect: str = "deny", tool: str = "t") -> str:
    """A bundle that denies a word, twice: a call that saw parts of two policies would hear two
    different messages.
    """
    contracts = "".join(
        f"  - {{id: {part}, type: pre, tool: {tool}, when: {{args.x: {{exists: true}}}}, "
        f"then: {{effect: {effect}, message: {part} {word}}}}}\n"
        for part in ("first", "second")
    )
    return f"{HEAD}contracts:\n{contracts}"


def reasons(guard: Edictum) -> list[str]:
    return guard.evaluate("t", {"x": 1}).deny_reasons


async def test_the_new_bundle_replaces_the_old_one() -> None:
    guard = Edictum.from_yaml_string(denying("old"))
    before = guard.policy_version
    report = await guard.reload(denying("new"))
    assert reasons(guard) == ["first new", "second new"]
    assert guard.policy_version not in (None, before)
    assert report.warnings == []


async def test_a_path_and_layers(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(denying("file"))
    guard = Edictum.from_yaml_string(denying("old"))
    await guard.reload(path)
    assert reasons(guard) == ["first file", "second file"]
    await guard.reload(path, denying("layer").replace("id: second", "id: third"))
    assert reasons(guard) == ["first layer", "second file", "second layer"]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "a: [",
        HEAD,
        denying("x").replace("exists", "exist"),
        denying("x").replace("args", "arg"),
        5,
    ],
)
async def test_a_bad_bundle_leaves_the_old_one_in_force(bad: Any) -> None:
    guard = Edictum.from_yaml_string(denying("old"))
    version = guard.policy_version
    with pytest.raises(EdictumConfigError):
        await guard.reload(bad)
    assert (reasons(guard), guard.policy_version) == (["first old", "second old"], version)


async def test_what_was_given_in_python_stays() -> None:
    @precondition("t")
    def mine(call: Any) -> Verdict:
        return Verdict.fail("mine")

    guard = Edictum(
        contracts=[mine], tools={"t": {"side_effect": "read"}}, principal=Principal(role="sre")
    )
    await guard.reload(denying("new"))
    assert reasons(guard) == ["mine", "first new", "second new"]
    await guard.reload(denying("newer"))
    assert reasons(guard) == ["mine", "first newer", "second newer"]
    assert guard.policy.entry("t").side_effect == "read"
    assert guard.principal == Principal(role="sre")


async def test_custom_operators_selectors_and_the_mode_stay() -> None:
    own = (
        HEAD
        + "contracts: [{id: a, type: pre, tool: t, when: {risk.n: {near: N}}, then: {effect: deny,"
        " message: m}}]\n"
    )
    guard = Edictum.from_yaml_string(
        own.replace("N", "1"),
        custom_operators={"near": lambda field, value: abs(field - value) <= 1},
        custom_selectors={"risk": lambda call: {"n": 5}},
        mode="enforce",
    )
    assert reasons(guard) == []
    await guard.reload(own.replace("N", "4") + "defaults: {mode: observe}\n")
    assert reasons(guard) == ["m"]


async def test_tools_candidates_and_success_rules_of_the_old_bundle_are_gone() -> None:
    old = (
        denying("old")
        + "tools: {t: {side_effect: read}}\nsuccess: [{tool: t, failure_when: {result: {equals:"
        " bad}}}]\n"
    )
    guard = Edictum.from_yaml_string(old, denying("candidate") + "observe_alongside: true\n")
    await guard.reload(denying("new", tool="u"))
    assert guard.policy.entry("t").side_effect == "irreversible"
    assert await guard.run("t", {"x": 1}, lambda x: "bad") == "bad"
    assert not guard.local_sink.filter("call_would_deny")


async def test_a_session_keeps_its_counts() -> None:
    limit = (
        "contracts: [{id: s, type: session, limits: {max_tool_calls: N}, then: {effect: deny,"
        " message: m}}]\n"
    )
    guard = Edictum.from_yaml_string(HEAD + limit.replace("N", "2"))
    for _ in range(2):
        await guard.run("t", {}, lambda: None)
    await guard.reload(HEAD + limit.replace("N", "3"))
    await guard.run("t", {}, lambda: None)
    with pytest.raises(EdictumDenied, match="m"):
        await guard.run("t", {}, lambda: None)


async def test_an_approval_does_not_count_for_the_policy_that_came_after_it_was_asked() -> None:
    backend = InMemoryApprovalBackend()
    guard = Edictum.from_yaml_string(denying("ask", effect="approve"), approval_backend=backend)
    ran: list[int] = []
    call = asyncio.ensure_future(guard.dispatch("t", {"x": 1}, ran.append))
    await wait_in_loop(lambda: backend.pending)
    await guard.reload(denying("never"))
    backend.decide(backend.pending[0].approval_id, True)
    outcome = await call
    assert (outcome.reason, outcome.details) == (
        "write_denied",
        "The policy has changed since approval was asked for. Call again.",
    )  # type: ignore[union-attr]
    assert ran == []
    assert guard.local_sink.last().action == "call_approval_void"


@pytest.mark.slow
@pytest.mark.soak
def test_every_call_sees_one_whole_policy() -> None:
    """Many reloads under eight threads of calls: what a call heard, and the version it was recorded
    with, belong together.
    """
    bundles = {"odd": denying("odd"), "even": denying("even")}
    versions = {
        word: Edictum.from_yaml_string(bundle).policy_version for word, bundle in bundles.items()
    }
    guard = Edictum.from_yaml_string(bundles["odd"])
    stop = threading.Event()
    calls = [0] * 8

    def call(number: int) -> None:
        while not stop.is_set():
            guard.dispatch_sync("t", {"x": 1}, lambda x: None, session_id=f"s{number}")
            calls[number] += 1
            time.sleep(0.001)  # or nine threads would spend their time waiting for each other

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for number in range(RELOADS):
        guard._reload([bundles["even" if number % 2 else "odd"]])
    stop.set()
    for thread in threads:
        thread.join()
    heard = [
        ({record["message"] for record in event.contracts_evaluated}, event.policy_version)
        for event in guard.local_sink.events
    ]
    whole = [({f"first {word}", f"second {word}"}, version) for word, version in versions.items()]
    assert [pair for pair in heard if pair not in whole] == []
    assert all(pair in heard for pair in whole)
    assert all(calls)


class TestWatch:
    def test_a_changed_file_is_reloaded_and_a_bad_one_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "c.yaml"
        path.write_text(denying("one"))
        guard = Edictum.from_yaml(path)
        reloaded, failed = threading.Event(), threading.Event()
        with guard.watch(
            path,
            interval_s=0.01,
            on_reload=lambda report: reloaded.set(),
            on_error=lambda exc: failed.set(),
        ):
            path.write_text(denying("two"))
            assert reloaded.wait(60)
            assert reasons(guard) == ["first two", "second two"]
            path.write_text("a: [")
            assert failed.wait(60)
            assert reasons(guard) == ["first two", "second two"]
            reloaded.clear()
            path.unlink()
            path.write_text(denying("three"))
            assert reloaded.wait(60)
        assert reasons(guard) == ["first three", "second three"]

    def test_a_file_that_is_gone_is_reported_once_and_loaded_when_it_is_back(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "c.yaml"
        path.write_text(denying("one"))
        guard = Edictum.from_yaml(path)
        reloaded, errors = threading.Event(), list[Exception]()
        with guard.watch(
            path,
            interval_s=0.005,
            on_reload=lambda report: reloaded.set(),
            on_error=errors.append,
        ):
            for number in (1, 2):
                path.unlink()
                wait_until(lambda number=number: len(errors) == number)
                time.sleep(0.05)  # several more looks
                assert reasons(guard)[0].startswith("first")
                beside = tmp_path / "new.yaml"  # half a file could be read while it is written
                beside.write_text(denying(f"back {number}"))
                beside.replace(path)
                assert reloaded.wait(60)
                reloaded.clear()
        assert reasons(guard) == ["first back 2", "second back 2"]
        assert [type(error) for error in errors] == [EdictumConfigError] * 2
        assert str(errors[0]).startswith(f"watch(): {path} is gone; the policy that was loaded")

    async def test_a_merged_guard_keeps_the_tighter_limits_of_all(self) -> None:
        guards = [Edictum(limits=OperationLimits(max_tool_calls=limit)) for limit in (100, 3)]
        guard = Edictum.from_multiple([*guards, Edictum()])
        await guard.reload(denying("one"))
        assert guard.limits.max_tool_calls == 3

    async def test_closing_the_guard_ends_it(self, tmp_path: Path) -> None:
        path = tmp_path / "c.yaml"
        path.write_text(denying("one"))
        async with Edictum.from_yaml(path) as guard:
            watch = guard.watch(path, interval_s=0.01)
        assert not watch._thread.is_alive()

    async def test_a_bundle_that_was_not_loaded_is_not_watched(self, tmp_path: Path) -> None:
        """Until its first change it would not be in force."""
        path = tmp_path / "c.yaml"
        path.write_text(denying("one"))
        guard = Edictum(policy_version="7")
        with pytest.raises(EdictumConfigError, match="no bundle in force"):
            guard.watch(path)
        await guard.reload(path)
        guard.watch(path).stop()
        assert reasons(guard) == ["first one", "second one"]

    def test_what_is_given_is_checked(self) -> None:
        guard = Edictum.from_yaml_string(denying("one"))
        with pytest.raises(EdictumConfigError, match="at least one path"):
            guard.watch()
        with pytest.raises(EdictumConfigError, match="there is no file 'x'"):
            guard.watch("x")
        with pytest.raises(EdictumConfigError, match="interval_s"):
            guard.watch(__file__, interval_s=0)
