"""Ready-made models: OpenAI-style and Anthropic-style clients, synchronous and asynchronous, without their libraries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from turns import new_guard, search

from edictum.harness import anthropic_model, openai_model, run_turn
from edictum.harness.models import to_anthropic

USER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do it."}]


def client(replies: list[Any], asynchronous: bool) -> tuple[Any, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []

    def create(**request: Any) -> Any:
        sent.append(request)
        return replies.pop(0)

    async def create_later(**request: Any) -> Any:
        return create(**request)

    verb = create_later if asynchronous else create
    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=verb)), messages=SimpleNamespace(create=verb)), sent


def openai_replies() -> list[Any]:
    function = SimpleNamespace(name="search", arguments='{"query": "a"}')
    asking = SimpleNamespace(content=None, tool_calls=[SimpleNamespace(id="c1", function=function)])
    usage = SimpleNamespace(prompt_tokens=7, completion_tokens=3, prompt_tokens_details=SimpleNamespace(cached_tokens=2))
    first = SimpleNamespace(choices=[SimpleNamespace(message=asking)], usage=usage)
    return [first, {"choices": [{"message": {"content": "done"}}]}]


def anthropic_replies() -> list[Any]:
    usage = SimpleNamespace(input_tokens=7, output_tokens=3, cache_read_input_tokens=2, cache_creation_input_tokens=None)
    blocks = [SimpleNamespace(type="text", text="Looking."), SimpleNamespace(type="tool_use", id="c1", name="search", input={"query": "a"}),
              SimpleNamespace(type="tool_use", id="c2", name="nobody", input={})]  # fmt: skip
    return [SimpleNamespace(content=blocks, usage=usage), {"content": [{"type": "text", "text": "done"}]}]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_openai_style_client(asynchronous: bool) -> None:
    made, sent = client(openai_replies(), asynchronous)
    result = await run_turn(openai_model(made, model="m", temperature=0), USER, [search], new_guard())
    assert result.text == "done"
    assert sent[0]["tools"] == [search.to_openai_schema()]
    assert (sent[0]["model"], sent[0]["temperature"]) == ("m", 0)
    assert sent[1]["messages"][-2]["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"query": "a"}'}
    assert sent[1]["messages"][-1]["tool_call_id"] == "c1"
    assert (result.state.input_tokens, result.state.output_tokens, result.state.cache_read_tokens) == (7, 3, 2)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_anthropic_style_client(asynchronous: bool) -> None:
    made, sent = client(anthropic_replies(), asynchronous)
    result = await run_turn(anthropic_model(made, model="m", max_tokens=99), USER, [search], new_guard())
    assert result.text == "done"
    assert sent[0]["system"] == "Be brief."
    assert sent[0]["tools"] == [search.to_anthropic_schema()]
    asked, answered = sent[1]["messages"][-2:]
    assert [block["type"] for block in asked["content"]] == ["text", "tool_use", "tool_use"]
    assert [(block["type"], block["tool_use_id"]) for block in answered["content"]] == [("tool_result", "c1"), ("tool_result", "c2")]
    assert (result.state.input_tokens, result.state.cache_read_tokens) == (7, 2)


def test_messages_in_anthropics_shape() -> None:
    calls = [{"id": "a", "function": {"name": "t", "arguments": "{broken"}}]
    system, turns = to_anthropic([
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "{}", "is_error": True},
        {"role": "system", "content": "half is used"},
    ])  # fmt: skip
    assert system == ""
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == [{"type": "tool_use", "id": "a", "name": "t", "input": {"arguments": "{broken"}}]
    assert turns[2]["content"][0]["is_error"] is True
    assert turns[2]["content"][1] == {"type": "text", "text": "half is used"}
