"""Where the policy and a tool's own spec differ, the more careful counts; and what neither of them
can know.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from turns import Bench, FakeTimer, expect_result, new_guard, new_state, request

from edictum import Edictum
from edictum.harness import (
    DeadlineToken,
    ModelReply,
    ResourceKey,
    ToolCallRequest,
    ToolRegistry,
    ToolScheduler,
    ToolSpec,
    TurnBudget,
    TurnState,
    run_turn,
    tool,
)
from edictum.harness.tool_spec import spec_from_mcp
from edictum.harness.turn_call import Turn
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure, ToolTimeout

# --- What a tool does to the world ----------------------------------------------------------------


class World:
    """A tool that says it reads, and writes; and one that reads."""

    def __init__(self) -> None:
        self.x = 0
        self.sync = tool(name="sync", side_effect="read", idempotent=True, max_retries=2)(
            self._sync
        )
        self.get = tool(name="get", side_effect="read", idempotent=True)(lambda: {"x": self.x})

    def _sync(self) -> dict[str, int]:
        self.x += 1
        return {"x": self.x}


def careful() -> Edictum:
    return new_guard(tools={"sync": {"side_effect": "write", "idempotent": False}})


async def test_a_write_by_the_policy_makes_reads_stale_and_may_be_repeated() -> None:
    world = World()
    bench = Bench(world.sync, world.get, guard=careful())
    assert [
        expect_result(await bench.call(name)).value["x"] for name in ("get", "sync", "get", "sync")
    ] == [0, 1, 1, 2]


async def test_a_write_by_the_policy_is_not_tried_again() -> None:
    ran: list[int] = []

    def fails() -> None:
        ran.append(1)
        raise OSError("no")

    spec = tool(name="sync", side_effect="read", max_retries=2)(fails)
    assert isinstance(await Bench(spec, guard=careful()).call("sync"), ToolFailure)
    assert ran == [1]


async def test_two_writes_by_the_policy_do_not_run_side_by_side() -> None:
    inside: list[str] = []
    most: list[int] = []

    @tool(side_effect="read")
    async def sync(n: int) -> None:
        inside.append("x")
        most.append(len(inside))
        await asyncio.sleep(0)
        inside.pop()

    def model(messages: Any, tools: Any) -> Any:
        asked = (ToolCallRequest("1", "sync", {"n": 1}), ToolCallRequest("2", "sync", {"n": 2}))
        return "done" if messages[-1]["role"] == "tool" else ModelReply("", asked)

    await run_turn(model, [{"role": "user", "content": "x"}], [sync], careful())
    assert most == [1, 1]


def test_tools_as_a_policy_sees_them() -> None:
    world = World()
    registry = ToolRegistry([world.sync, world.get])
    seen = registry.under(careful().policy)
    assert seen.get("get") is world.get
    assert not seen.get("sync").is_read  # type: ignore[union-attr]
    assert world.sync.is_read, "the spec itself is as it was"
    guard = careful()
    assert registry.under(guard.policy).get("sync") is registry.under(guard.policy).get("sync"), (
        "worked out once"
    )


# --- Where it runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [{"run_in": "thread"}, {"timeout_s": 30.0}])
async def test_an_inline_tool_leaves_its_place_when_the_policy_bounds_it(
    entry: dict[str, Any],
) -> None:
    threads: list[Any] = []
    spec = tool(name="t", side_effect="read", isolation="inline")(
        lambda: threads.append(threading.current_thread())
    )
    expect_result(
        await Bench(spec, guard=new_guard(tools={"t": {"side_effect": "read", **entry}})).call("t")
    )
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("policy", [True, False])
async def test_a_timeout_stops_the_wait_for_an_inline_tool(policy: bool) -> None:
    go_on = threading.Event()
    spec = tool(
        name="t", side_effect="read", isolation="inline", timeout_s=None if policy else 0.05
    )(lambda: go_on.wait(30))
    guard = new_guard(tools={"t": {"side_effect": "read", "timeout_s": 0.05}} if policy else {})
    assert isinstance(await Bench(spec, guard=guard).call("t"), ToolTimeout)
    go_on.set()


def from_nowhere() -> Any:
    space: dict[str, Any] = {"__name__": "a_module_that_is_not_there"}
    exec("def work(): return {}", space)
    return space["work"]


async def test_a_function_of_a_module_that_cannot_be_imported_is_a_failure() -> None:
    bench = Bench(ToolSpec(name="work", function=from_nowhere(), isolation="process"))
    for outcome in (await bench.call("work"), bench.executor.execute(request("work"), new_state())):
        assert isinstance(outcome, ToolFailure)
        assert "cannot be sent to a worker process" in outcome.error
    assert [entry.status for entry in bench.state.tool_trace.values()] == ["completed"]


# --- Time -----------------------------------------------------------------------------------------


async def test_a_tool_has_all_of_its_time_while_a_person_decides_about_another() -> None:
    timer, left = FakeTimer(), []

    @tool(side_effect="read", timeout_s=5)
    async def look(token: DeadlineToken) -> None:
        left.append(token.remaining_s())

    budget = TurnBudget.create(timeout_s=100, timer=timer)
    bench = Bench(look, state=TurnState("s", budget))
    budget.pause()
    timer.advance(60)
    expect_result(await bench.call("look"))
    left.append(DeadlineToken.from_budget(budget, 5).remaining_s())
    assert left == [5, 5]


# --- Names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "", 5, ["x"], None])
async def test_a_function_under_a_name_that_no_tool_can_have_is_refused(name: Any) -> None:
    outcome = await new_guard().dispatch(name, {}, lambda: 1, turn=Turn(new_state()))
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "unknown_tool"


def test_equal_arguments_name_one_resource() -> None:
    spec = ToolSpec(name="t", side_effect="read", resource_keys=["a:{id}"])  # type: ignore[arg-type]

    def name(value: Any) -> str:
        (key,) = spec.keys_for({"id": value})
        return key.name

    assert name(1) == name(1.0) == name("1") == "a:1"
    assert name("e\u0301") == name("\u00e9")
    assert name({"x": 1, "y": [2]}) == name({"y": [2.0], "x": 1.0})
    assert len({name(value) for value in (1, 1.5, None, True, [1], "x")}) == 6
    assert spec.keys_for({"id": 10**5000}) == (ResourceKey("*", exclusive=False),), (
        "what has no name is any resource"
    )


ACCOUNTS = ToolRegistry(
    [
        ToolSpec(name="get", side_effect="read", resource_keys=["account:{id}"]),  # type: ignore[arg-type]
        ToolSpec(
            name="put",
            side_effect="write",
            resource_keys=["account:{id}"],  # type: ignore[arg-type]
            parameters={"type": "object", "properties": {"id": {"type": "integer", "default": 1}}},
        ),
        ToolSpec(name="sum", side_effect="pure", parameters={"type": "object", "required": ["x"]}),  # type: ignore[arg-type]
        ToolSpec(name="odd", side_effect="read", parameters={"type": "nothing"}),  # type: ignore[arg-type]
    ]
)


@pytest.mark.parametrize(
    ("name", "arguments", "together"),
    [
        ("put", {"id": 2}, True),
        ("put", {"id": 1.0}, False),
        ("put", {"id": " 1 "}, False),
        ("put", {"id": None}, False),
        ("put", {}, False),
        ("put", {"id": []}, False),
        ("sum", {}, True),
    ],
)
def test_waves_are_made_of_the_arguments_that_will_run(
    name: str, arguments: Any, together: bool
) -> None:
    waves = ToolScheduler().schedule(
        [request("get", {"id": 1}), request(name, arguments)], ACCOUNTS
    )
    assert len(waves) == (1 if together else 2)


def test_a_tool_without_a_usable_schema_may_touch_anything() -> None:
    assert len(ToolScheduler().schedule([request("put", {"id": 1}), request("odd")], ACCOUNTS)) == 2


async def test_an_entry_that_says_nothing_of_the_effect_leaves_it_to_the_spec() -> None:
    """Only a timeout, for example. What nobody describes is the worst case."""
    guard = new_guard(tools={"t": {"timeout_s": 30.0}, "u": {"timeout_s": 30.0}})
    bench = Bench(tool(name="t", side_effect="read", idempotent=True)(lambda: 1), guard=guard)
    await bench.call("t")
    again = await bench.call("t")
    assert isinstance(again, ToolDenied)
    assert again.reason == "duplicate"
    await guard.dispatch("u", {}, lambda: 1)
    assert [
        event.side_effect for event in guard.local_sink.events if event.action == "call_executed"
    ] == ["read", "irreversible"]


async def test_a_spec_that_says_nothing_of_the_effect_leaves_it_to_the_policy() -> None:
    """A fetch that only reads may be tried again after a timeout, and is not blocked."""
    guard = new_guard(tools={"fetch": {"side_effect": "read"}})

    @tool(timeout_s=0.05)
    async def fetch(n: int) -> int:
        await asyncio.sleep(0 if n else 5)
        return n

    bench = Bench(fetch, guard=guard)
    late = await bench.call("fetch", {"n": 0})
    assert isinstance(late, ToolTimeout)
    assert (late.effect_unknown, late.retryable) == (False, True)
    assert isinstance(await bench.call("fetch", {"n": 1}), ToolExecutionResult)
    assert {event.side_effect for event in guard.local_sink.events} == {"read"}


@pytest.mark.parametrize(
    ("settings", "entry", "effect"),
    [
        ({}, {"side_effect": "read"}, "read"),
        ({}, {"timeout_s": 5.0}, "irreversible"),
        ({"idempotent": True}, {"side_effect": "read"}, "read"),
        ({"side_effect": "write"}, {"side_effect": "read"}, "write"),
        ({"side_effect": "irreversible"}, {"side_effect": "read"}, "irreversible"),
        ({"side_effect": "read"}, {"side_effect": "write"}, "write"),
        ({"side_effect": "read"}, {"idempotent": True}, "read"),
        ({"window_s": 5.0}, {"side_effect": "read"}, "irreversible"),
    ],
)
async def test_the_more_careful_of_what_is_stated_counts(
    settings: dict[str, Any], entry: dict[str, Any], effect: str
) -> None:
    guard = new_guard(tools={"t": entry})
    await Bench(tool(name="t", **settings)(lambda: 1), guard=guard).call("t")
    assert {event.side_effect for event in guard.local_sink.events} == {effect}


@pytest.mark.parametrize(
    ("annotations", "effect", "stated"),
    [
        (None, "irreversible", False),
        ({"idempotentHint": True}, "irreversible", False),
        ({"readOnlyHint": True}, "read", True),
        ({"destructiveHint": False}, "write", True),
        ({"destructiveHint": True}, "irreversible", True),
    ],
)
def test_hints_of_mcp_that_are_missing_state_nothing(
    annotations: Any, effect: str, stated: bool
) -> None:
    spec = spec_from_mcp({"name": "t", "annotations": annotations})
    assert (spec.side_effect, spec.states_effect) == (effect, stated)
