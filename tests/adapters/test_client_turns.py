"""Turns with the real clients: stop reasons, streams, and turns that are stopped in the middle.

What the next turn sends is checked by a server that refuses what the real APIs refuse.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from model_server import Call, ModelServer, Refuse, Search, Think, says
from test_model_clients import (
    ANTHROPIC,
    CHAT,
    RESPONSES,
    SEARCHES,
    THINKING,
    Api,
    close,
    every_api,
    every_client,
)

from edictum import Edictum
from edictum.harness import (
    TextDelta,
    ToolCallEnded,
    ToolCallMade,
    TurnBudget,
    TurnEnded,
    TurnResult,
    TurnState,
    stream_turn,
    tool,
)

pytestmark = pytest.mark.s1  # needs anthropic

ASKED = [{"role": "user", "content": "Do it."}]
saved: list[str] = []


@tool(side_effect="write")
async def save(text: str) -> str:
    """Save a text; the text "slowly" takes very long."""
    await asyncio.sleep(60 if text == "slowly" else 0)
    saved.append(text)
    return "saved"


async def run_streamed(model: Any, messages: Any, **options: Any) -> TurnResult:
    events = [it async for it in stream_turn(model, messages, [save], Edictum(), **options)]
    assert isinstance(events[-1], TurnEnded)
    return events[-1].result


CUT_CALL = Call("c1", "save", {"text": "delete every"})
ENDS = [
    (CHAT, says("do", stop="length"), "length", "do"),
    (CHAT, says(CUT_CALL, stop="length"), "length", ""),
    (CHAT, says(Call("c1", "save", '{"te'), stop="length"), "length", ""),
    (CHAT, says("do", stop="content_filter"), "content_filter", "do"),
    (CHAT, says(Refuse("I will not.")), "refused", "I will not."),
    (RESPONSES, says("do", stop="max_output_tokens"), "length", "do"),
    (RESPONSES, says(CUT_CALL, stop="max_output_tokens"), "length", ""),
    (RESPONSES, says(Refuse("I will not.")), "refused", "I will not."),
    (ANTHROPIC, says("do", stop="max_tokens"), "length", "do"),
    (ANTHROPIC, says(Think("a"), CUT_CALL, stop="max_tokens"), "length", ""),
    (ANTHROPIC, says("I ", stop="refusal"), "refused", "I "),
]


@every_client
@pytest.mark.parametrize(
    ("api", "reply", "stopped_by", "text"),
    [pytest.param(*each, id=f"{each[0].name}{n}-{each[2]}") for n, each in enumerate(ENDS)],
)
async def test_a_stop_reason_ends_the_turn_and_the_next_one_is_accepted(
    api: Api, reply: Any, stopped_by: str, text: str, is_async: bool
) -> None:
    saved.clear()
    with ModelServer(api.wire(), [reply, says("done")]) as server:
        client = api.client(server, is_async)
        model = api.make_model(client, model="test", **THINKING.get(api.name, {}))
        first = await run_streamed(model, ASKED)
        again = [*first.messages, {"role": "user", "content": "Go on."}]
        second = await run_streamed(model, again)
        await close(client)
    assert (first.stopped_by, first.text, saved) == (stopped_by, text, [])
    assert (second.stopped_by, second.text, server.refusals) == ("answered", "done", [])


async def test_a_paused_reply_goes_on_in_the_same_turn() -> None:
    paused = says("Let me search. ", Search("tea", answered=False), stop="pause_turn")
    with ModelServer(ANTHROPIC.wire(), [paused, says("Found it.")]) as server:
        client = ANTHROPIC.client(server, True)
        model = ANTHROPIC.make_model(client, model="test", **SEARCHES["anthropic"])
        result = await run_streamed(model, ASKED)
        await close(client)
    assert (result.stopped_by, server.refusals) == ("answered", [])
    assert result.text.startswith("Let me search. ")
    assert result.text.endswith("Found it.")
    assert len(result.model_calls) == 2


@every_api
@every_client
async def test_a_turn_stopped_in_a_reply_closes_the_stream(api: Api, is_async: bool) -> None:
    state = TurnState()
    with ModelServer(api.wire(), [says("a long answer " * 20), says("done")]) as server:
        server.holds = True
        client = api.client(server, is_async)
        model = api.make_model(client, model="test")
        turn = stream_turn(model, ASKED, [save], Edictum(), state=state)
        async with contextlib.aclosing(turn) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        if is_async:  # a blocking client waits for the next event of its stream
            assert await asyncio.to_thread(server.closed_early.wait, 10)
        server.holds = False
        said = state.messages[-1]
        assert said["role"] == "assistant"
        assert said["content"].startswith("a long answer"[: len(said["content"])])
        again = [*state.messages, {"role": "user", "content": "Go on."}]
        result = await run_streamed(model, again)
        await close(client)
    assert (result.text, server.refusals) == ("done", [])


@every_api
async def test_a_turn_stopped_in_its_calls_tells_the_next_one_what_ran(api: Api) -> None:
    saved.clear()
    texts = ("first", "slowly", "last")
    asks = says(
        Think("Hm."), *(Call(f"c{n}", "save", {"text": text}) for n, text in enumerate(texts))
    )
    state = TurnState()
    with ModelServer(api.wire(), [asks, says("done")]) as server:
        client = api.client(server, True)
        model = api.make_model(client, model="test", **THINKING.get(api.name, {}))
        turn = stream_turn(model, ASKED, [save], Edictum(), state=state)
        async with contextlib.aclosing(turn) as events:
            ended = 0
            async for event in events:
                ended += isinstance(event, ToolCallEnded)
                if ended and isinstance(event, ToolCallMade):
                    await asyncio.sleep(0.2)
                    break
        again = [*state.messages, {"role": "user", "content": "Go on."}]
        result = await run_streamed(model, again, budget=TurnBudget.create(30))
        await close(client)
    assert (result.text, server.refusals, saved) == ("done", [], ["first"])
    sent = str(server.requests[-1])
    assert "cancelled while the tool ran" in sent
    assert "cancelled before this call was made" in sent


@every_api
@every_client
async def test_an_error_inside_a_stream_ends_the_turn_and_keeps_what_ran(
    api: Api, is_async: bool
) -> None:
    """The provider is overloaded after the first half of the second reply."""
    saved.clear()
    replies = [
        says(Think("Hm."), Call("c1", "save", {"text": "first"})),
        says(Think("And?"), "It is saved.", Call("c2", "save", {"text": "second"})),
        says("done"),
    ]
    state = TurnState()
    with ModelServer(api.wire(), replies) as server:
        server.overloaded_at = 2
        client = api.client(server, is_async)
        model = api.make_model(client, model="test", **THINKING.get(api.name, {}))
        first = await run_streamed(model, ASKED, state=state)
        again = [*first.messages, {"role": "user", "content": "Go on."}]
        second = await run_streamed(model, again)
        await close(client)
    assert (first.stopped_by, saved) == ("model_error", ["first"])
    assert "Overloaded" in str(first.error)
    assert state.messages == first.messages
    assert (second.text, server.refusals) == ("done", [])
    assert "saved" in json.dumps(server.requests[2])
