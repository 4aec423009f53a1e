"""Ready-made models: OpenAI-style and Anthropic-style clients, synchronous and asynchronous,
without their libraries.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from turns import new_guard, search

from edictum.harness import (
    ModelReply,
    ToolCallRequest,
    TurnBudget,
    anthropic_model,
    openai_model,
    run_turn,
)
from edictum.harness.models import to_anthropic, to_openai

USER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do it."}]


def client(replies: list[Any], asynchronous: bool) -> tuple[Any, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []

    def create(**request: Any) -> Any:
        sent.append(request)
        return replies.pop(0)

    async def create_later(**request: Any) -> Any:
        return create(**request)

    verb = create_later if asynchronous else create
    return (
        SimpleNamespace(
            chat=SimpleNamespace(completions=SimpleNamespace(create=verb)),
            messages=SimpleNamespace(create=verb),
        ),
        sent,
    )


def openai_replies() -> list[Any]:
    function = SimpleNamespace(name="search", arguments='{"query": "a"}')
    asking = SimpleNamespace(content=None, tool_calls=[SimpleNamespace(id="c1", function=function)])
    usage = SimpleNamespace(
        prompt_tokens=7, completion_tokens=3, prompt_tokens_details=SimpleNamespace(cached_tokens=2)
    )
    first = SimpleNamespace(choices=[SimpleNamespace(message=asking)], usage=usage)
    return [first, {"choices": [{"message": {"content": "done"}}]}]


def anthropic_replies() -> list[Any]:
    usage = SimpleNamespace(
        input_tokens=7, output_tokens=3, cache_read_input_tokens=2, cache_creation_input_tokens=None
    )
    blocks = [
        SimpleNamespace(type="text", text="Looking."),
        SimpleNamespace(type="tool_use", id="c1", name="search", input={"query": "a"}),
        SimpleNamespace(type="tool_use", id="c2", name="nobody", input={}),
    ]
    return [
        SimpleNamespace(content=blocks, usage=usage),
        {"content": [{"type": "text", "text": "done"}]},
    ]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_openai_style_client(asynchronous: bool) -> None:
    made, sent = client(openai_replies(), asynchronous)
    result = await run_turn(
        openai_model(made, model="m", temperature=0), USER, [search], new_guard()
    )
    assert result.text == "done"
    assert sent[0]["tools"] == [search.to_openai_schema()]
    assert (sent[0]["model"], sent[0]["temperature"]) == ("m", 0)
    assert sent[1]["messages"][-2]["tool_calls"][0]["function"] == {
        "name": "search",
        "arguments": '{"query": "a"}',
    }
    assert sent[1]["messages"][-1]["tool_call_id"] == "c1"
    assert (
        result.state.input_tokens,
        result.state.output_tokens,
        result.state.cache_read_tokens,
    ) == (7, 3, 2)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_anthropic_style_client(asynchronous: bool) -> None:
    made, sent = client(anthropic_replies(), asynchronous)
    result = await run_turn(
        anthropic_model(made, model="m", max_tokens=99), USER, [search], new_guard()
    )
    assert result.text == "done"
    assert sent[0]["system"] == "Be brief."
    assert sent[0]["tools"] == [search.to_anthropic_schema()]
    asked, answered = sent[1]["messages"][-2:]
    assert [block["type"] for block in asked["content"]] == ["text", "tool_use", "tool_use"]
    assert [(block["type"], block["tool_use_id"]) for block in answered["content"]] == [
        ("tool_result", "c1"),
        ("tool_result", "c2"),
    ]
    assert (result.state.input_tokens, result.state.cache_read_tokens) == (7, 2)


def test_messages_in_anthropics_shape() -> None:
    calls = [{"id": "a", "function": {"name": "t", "arguments": "{broken"}}]
    system, turns = to_anthropic(
        [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "{}", "is_error": True},
            {"role": "system", "content": "half is used"},
        ]
    )
    assert system == ""
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == [
        {"type": "tool_use", "id": "a", "name": "t", "input": {"arguments": "{broken"}}
    ]
    assert turns[2]["content"][0]["is_error"] is True
    assert turns[2]["content"][1] == {"type": "text", "text": "half is used"}


def test_what_says_nothing_is_not_sent_to_anthropic() -> None:
    """An empty content is refused by the API as soon as the conversation goes on, and so is a blank
    text.
    """
    system, turns = to_anthropic(
        [
            {"role": "system", "content": None},
            {"role": "developer", "content": "Be brief."},
            {"role": "system"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": [{"type": "text", "text": " "}]},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"role": "tool", "tool_call_id": "t", "content": None},
        ]
    )
    assert system == "Be brief."
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [block["text"] for block in turns[0]["content"]] == ["a", "b"]
    assert turns[2]["content"] == [{"type": "tool_result", "tool_use_id": "t", "content": ""}]


def test_blocks_of_a_client_are_sent_as_they_are() -> None:
    answer = anthropic_replies()[0].content
    _, turns = to_anthropic([USER[1], {"role": "assistant", "content": answer}])
    assert turns[1]["content"] == answer


def test_instructions_in_blocks_stay_blocks() -> None:
    cached = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral"}}
    system, _ = to_anthropic(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": [cached]},
            *USER[1:],
        ]
    )
    assert system == [{"type": "text", "text": "Be brief."}, cached]


async def test_what_says_nothing_is_not_sent_to_openai() -> None:
    made, sent = client(openai_replies()[1:], asynchronous=True)
    spoken = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    messages = [
        {"role": "system", "content": None},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        spoken,
    ]
    await run_turn(openai_model(made, model="m"), messages, [search], new_guard())
    assert sent[0]["messages"] == [messages[1], spoken]


async def test_the_last_question_to_openai_says_nothing_of_tools() -> None:
    made, sent = client(openai_replies(), asynchronous=True)
    model = openai_model(
        made, model="m", tool_choice="auto", parallel_tool_calls=False, temperature=0
    )
    await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=1))
    assert {"tools", "tool_choice", "parallel_tool_calls", "temperature"} <= set(sent[0])
    assert set(sent[1]) == {"model", "messages", "temperature"}


async def test_the_last_question_to_anthropic_declares_what_was_called_and_offers_nothing() -> None:
    made, sent = client(anthropic_replies(), asynchronous=True)
    model = anthropic_model(made, model="m", tool_choice={"type": "any"})
    await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=1))
    assert sent[0]["tool_choice"] == {"type": "any"}
    assert sent[1]["tool_choice"] == {"type": "none"}
    assert [declared["name"] for declared in sent[1]["tools"]] == ["search", "nobody"]


HALF = "\ud83d"  # of an emoji; a model that is cut short writes it, and JSON lets it through


@pytest.mark.parametrize(
    "call",
    [
        ToolCallRequest(HALF, "search", {"query": "a"}),
        ToolCallRequest("c", HALF, {}),
        ToolCallRequest("c", "search", {"query": HALF}),
        ToolCallRequest("c", "search", json.dumps({"query": HALF})),
        ToolCallRequest("c", "search", f'{{"query": "{HALF}"}}'),
    ],
)
async def test_half_a_character_can_be_sent_back(call: ToolCallRequest) -> None:
    replies = [ModelReply(HALF, (call,)), ModelReply(f"done {HALF}")]
    result = await run_turn(lambda _messages, _tools: replies.pop(0), USER, [search], new_guard())
    assert result.text == result.messages[-1]["content"] == "done ?"
    for sent in (to_openai(result.messages), to_anthropic(result.messages)):
        json.dumps(
            sent, ensure_ascii=False
        ).encode()  # as clients do it; it raises for half a character
