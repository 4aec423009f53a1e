"""What a turn is given is checked at the door: the error says what was given and what is wanted."""

from __future__ import annotations

from typing import Any

import pytest
from turns import new_guard, new_state, request, search

import edictum
from edictum import EdictumConfigError, EdictumInputError
from edictum.harness import BoundedToolExecutor, ToolRegistry, TurnBudget, run_turn

USER = [{"role": "user", "content": "Do it."}]


async def model(messages: Any, tools: Any) -> str:
    return "done"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "gpt"}, "model is 'gpt'"),
        ({"budget": 10}, "budget is 10 .*TurnBudget.create"),
        (
            {"guard": TurnBudget.create(5)},
            "guard is .*TurnBudget.* The order is: model, messages, tools, guard, budget",
        ),
        (
            {"tools": edictum.ToolRegistry()},
            "tools is .*edictum.registry.ToolRegistry.* edictum.harness.ToolRegistry",
        ),
        ({"tools": search}, "tools is .*Pass a list of tools"),
        ({"tools": "search"}, "tools is 'search'"),
        ({"tools": {"search": search}}, "tools is {"),
        ({"tools": [search, 3]}, r"tools\[1\] is 3"),
        ({"state": "s"}, "state is 's'"),
        ({"scheduler": 8}, "scheduler is 8"),
        ({"on_outcome": "print"}, "on_outcome is 'print'"),
        ({"artifact_store": "/somewhere"}, "artifact_store is '/somewhere'"),
        ({"tool_timeout_cap_s": None}, "tool_timeout_cap_s is None .*Pass seconds"),
    ],
)
async def test_a_part_of_the_wrong_type(given: dict[str, Any], says: str) -> None:
    with pytest.raises(EdictumConfigError, match=says):
        await run_turn(**{"model": model, "messages": USER, **given})


@pytest.mark.parametrize(
    "messages", ["hello", None, {"role": "user"}, ["hello"], [{"content": "hello"}], [{"role": 1}]]
)
async def test_messages_of_the_wrong_shape(messages: Any) -> None:
    with pytest.raises(EdictumInputError, match=r"\{'role': 'user', 'content': '...'\}"):
        await run_turn(model, messages)


@pytest.mark.parametrize(
    "tools", [[search], (search,), iter([search]), ToolRegistry([search]), [lambda: None]]
)
async def test_tools_may_come_as_any_list(tools: Any) -> None:
    assert (await run_turn(model, USER, tools, new_guard())).text == "done"


def test_an_executor_looks_as_well() -> None:
    for tools, options in (
        ("search", {}),
        ([search], {"guard": 5}),
        ([search], {"artifact_store": 5}),
    ):
        with pytest.raises(EdictumConfigError, match="Pass"):
            BoundedToolExecutor(tools, **options)


@pytest.mark.parametrize("cap_s", [0, -1, True, "5", float("inf"), float("nan")])
def test_a_cap_that_is_no_time(cap_s: Any) -> None:
    with pytest.raises(
        EdictumConfigError, match=r"tool_timeout_cap_s is .*Pass seconds, more than 0"
    ):
        BoundedToolExecutor([search], tool_timeout_cap_s=cap_s)
    with pytest.raises(
        EdictumConfigError, match=r"tool_timeout_cap_s is .*Pass seconds, more than 0"
    ):
        BoundedToolExecutor([search]).execute(
            request("search", {"query": "a"}), new_state(), tool_timeout_cap_s=cap_s
        )


def test_without_a_cap_of_its_own_a_call_has_the_executors() -> None:
    executor = BoundedToolExecutor([search], tool_timeout_cap_s=7)
    assert (
        executor.turn(new_state(), tool_timeout_cap_s=None).cap_s
        == executor.turn(new_state()).cap_s
        == 7
    )
