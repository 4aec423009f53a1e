"""A turn as a stream of events: what it says, in which order, and what closing it does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from turns import USER, Script, calls, hang, new_guard, search

from edictum import EdictumConfigError
from edictum.harness import (
    ModelCall,
    ModelReply,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallEnded,
    ToolCallMade,
    ToolCallRequest,
    ToolCallStarted,
    TurnBudget,
    TurnEnded,
    TurnEvent,
    TurnState,
    run_turn,
    run_turn_sync,
    stream_turn,
)
from support.waiting import wait_in_loop, wait_until

OnEvent = Callable[[Any], Any]
ASK = ToolCallRequest("c", "search", {"query": "a"})


class Writer:
    """A model that writes its replies in pieces; ``closed`` counts replies that were broken off."""

    def __init__(self, *replies: ModelReply) -> None:
        self._replies = list(replies)
        self.closed = 0

    async def __call__(self, _messages: Any, _tools: Any, *, on_event: OnEvent | None) -> Any:
        reply = self._replies.pop(0)
        try:
            for event in pieces(reply):
                await asyncio.sleep(0)
                if on_event is not None:
                    on_event(event)
        except BaseException:
            self.closed += 1
            raise
        return reply


def pieces(reply: ModelReply) -> list[Any]:
    text = [TextDelta(f"{word} ") for word in reply.text.split()]
    started = [ToolCallStarted(n, it.id, it.name) for n, it in enumerate(reply.tool_calls)]
    return [ReasoningDelta("hmm"), *text, *started]


def name_of(event: TurnEvent) -> str:
    return event.text.strip() if isinstance(event, TextDelta) else type(event).__name__


WHOLE = [
    *("ReasoningDelta", "Let", "me", "see.", "ToolCallStarted", "ModelCall"),
    *("ToolCallMade", "ToolCallEnded"),
    *("ReasoningDelta", "It", "is", "here.", "ModelCall", "TurnEnded"),
]


def new_writer() -> Writer:
    return Writer(ModelReply("Let me see. ", (ASK,)), ModelReply("It is here. "))


async def test_events_come_in_the_order_of_what_happens() -> None:
    events = [event async for event in stream_turn(new_writer(), USER, [search], new_guard())]
    assert [name_of(event) for event in events] == WHOLE
    ended = events[-1]
    assert isinstance(ended, TurnEnded)
    assert (ended.result.text, ended.result.stopped_by) == ("It is here. ", "answered")
    made = [event for event in events if isinstance(event, ToolCallMade)]
    over = [event for event in events if isinstance(event, ToolCallEnded)]
    assert [event.call for event in made] == [event.call for event in over]
    assert tuple(event.outcome for event in over) == ended.result.outcomes
    assert tuple(it for it in events if isinstance(it, ModelCall)) == ended.result.model_calls


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_listener_hears_the_same_events(kind: str) -> None:
    heard: list[str] = []

    def listen(event: TurnEvent) -> None:
        heard.append(name_of(event))

    async def listen_later(event: TurnEvent) -> None:
        await asyncio.sleep(0.001)
        listen(event)

    on_event = listen if kind == "plain" else listen_later
    result = await run_turn(new_writer(), USER, [search], new_guard(), on_event=on_event)
    assert (result.stopped_by, heard) == ("answered", WHOLE)


@pytest.fixture
def switches_often() -> Iterator[None]:
    """Let threads interrupt each other at almost every line."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("_time", range(50))
@pytest.mark.usefixtures("switches_often")
def test_events_of_a_model_in_a_thread_come_in_order(_time: int) -> None:
    class Blocking:
        replies = [ModelReply("Let me see. ", (ASK,)), ModelReply("It is here. ")]

        def __call__(self, _messages: Any, _tools: Any, on_event: OnEvent) -> ModelReply:
            reply = self.replies.pop(0)
            for event in pieces(reply):
                on_event(event)
            return reply

    heard: list[str] = []
    threads: set[int] = set()

    def listen(event: TurnEvent) -> None:
        threads.add(threading.get_ident())
        heard.append(name_of(event))

    run_turn_sync(Blocking(), USER, [search], new_guard(), on_event=listen)
    assert heard == WHOLE
    assert len(threads) == 1, "a listener is called in one thread, wherever the model runs"


async def test_a_model_that_does_not_stream_gives_its_text_in_one_piece() -> None:
    refusal = ModelReply(refusal="No.", stop_reason="refused")
    events = [event async for event in stream_turn(Script("all of it"), USER)]
    assert [name_of(event) for event in events] == ["all of it", "ModelCall", "TurnEnded"]
    events = [event async for event in stream_turn(Script(refusal), USER)]
    assert events[0] == RefusalDelta("No.")


async def test_without_a_listener_the_model_is_not_asked_to_stream() -> None:
    def model(_messages: Any, _tools: Any, on_event: OnEvent | None = None) -> str:
        return "streamed" if on_event is not None else "whole"

    assert (await run_turn(model, USER)).text == "whole"
    assert (await run_turn(model, USER, on_event=lambda _: None)).text == "streamed"


# --- Closing --------------------------------------------------------------------------------------


async def test_closing_the_stream_ends_the_models_reply() -> None:
    model = Writer(ModelReply(" ".join(map(str, range(10_000)))))
    state = TurnState()
    async with contextlib.aclosing(stream_turn(model, USER, state=state)) as events:
        async for event in events:
            if isinstance(event, TextDelta) and event.text == "3 ":
                break
    assert model.closed == 1
    assert state.messages[-1]["content"].startswith("0 1 2 3 ")
    assert len(state.messages[-1]["content"].split()) < 10_000
    assert not state.is_accepting_writes()


async def test_closing_the_stream_settles_the_calls_that_run() -> None:
    guard, state = new_guard(), TurnState("s")
    model = Writer(ModelReply("", (ASK, ToolCallRequest("d", "hang", {}))))
    async with contextlib.aclosing(
        stream_turn(model, USER, [search, hang], guard, state=state)
    ) as events:
        async for event in events:
            if isinstance(event, ToolCallEnded):
                break
    assert guard.session("s").in_flight == 0
    found, cut = (message["content"] for message in state.messages[-2:])
    assert '"query"' in found
    assert "cancelled while the tool ran" in cut


async def test_breaking_off_without_closing_cancels_the_turn_as_well() -> None:
    model, state = Writer(ModelReply(" ".join(map(str, range(100_000))))), TurnState()
    async for event in stream_turn(model, USER, state=state):
        if isinstance(event, TextDelta):
            break
    await wait_in_loop(lambda: not state.is_accepting_writes())
    assert model.closed == 1


async def test_a_cancelled_reader_cancels_the_turn() -> None:
    model, state = Writer(ModelReply(" ".join(map(str, range(100_000))))), TurnState()
    read = asyncio.Event()

    async def reader() -> None:
        async for event in stream_turn(model, USER, state=state):
            if isinstance(event, TextDelta):
                read.set()

    task = asyncio.create_task(reader())
    await read.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.closed == 1
    assert state.messages[-1]["role"] == "assistant"


async def test_a_reader_that_is_cancelled_again_still_finds_the_conversation() -> None:
    """As in a web framework, which goes on cancelling until the task has ended."""
    state = TurnState()
    found: list[Any] = []

    async def model(_messages: Any, _tools: Any, on_event: OnEvent) -> str:
        on_event(TextDelta("so far"))
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
        return "never"

    async def reader() -> None:
        try:
            async for _ in stream_turn(model, USER, state=state):
                read.set()
        finally:
            found.extend(state.messages)

    read = asyncio.Event()
    task = asyncio.create_task(reader())
    await read.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    assert found[-1:] == [{"role": "assistant", "content": "so far"}]


async def test_a_reply_in_a_thread_is_broken_off_when_the_turn_ends() -> None:
    closed = threading.Event()

    def model(_messages: Any, _tools: Any, on_event: OnEvent) -> str:
        try:
            while True:
                threading.Event().wait(0.01)
                on_event(TextDelta("more "))
        finally:
            closed.set()

    state = TurnState()
    async with contextlib.aclosing(stream_turn(model, USER, state=state)) as events:
        await anext(events)
    wait_until(closed.is_set)
    assert state.messages[-1]["content"].startswith("more ")


async def test_time_that_runs_out_in_a_reply_keeps_what_was_said() -> None:
    async def model(_messages: Any, tools: Any, on_event: OnEvent) -> str:
        if tools:
            on_event(TextDelta("so far"))
        await asyncio.sleep(60)
        return "never"

    budget = TurnBudget.create(0.4, reserve_s=0.1)
    result = await run_turn(model, USER, [search], budget=budget, on_event=lambda _: None)
    assert (result.stopped_by, result.text) == ("deadline", "so far")
    assert result.messages[-1] == {"role": "assistant", "content": "so far"}


async def test_a_model_that_fails_in_its_reply_keeps_what_was_said() -> None:
    def model(_messages: Any, _tools: Any, on_event: OnEvent) -> str:
        on_event(TextDelta("so far"))
        raise ConnectionError("gone")

    result = await run_turn(model, USER, on_event=lambda _: None)
    assert (result.stopped_by, result.text) == ("model_error", "so far")
    assert isinstance(result.error, ConnectionError)


async def test_what_is_wrong_with_the_arguments_is_raised_to_the_reader() -> None:
    with pytest.raises(EdictumConfigError, match="budget is 3"):
        async for _ in stream_turn(Script(), USER, [], None, 3):
            pass


# --- Listeners that misbehave ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_listener_that_fails_is_logged_once_and_changes_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(_event: TurnEvent) -> None:
        raise ValueError("deaf")

    async def listen_later(_event: TurnEvent) -> None:
        raise ValueError("deaf")

    on_event = listen if kind == "plain" else listen_later
    with caplog.at_level(logging.ERROR, "edictum"):
        result = await run_turn(new_writer(), USER, [search], new_guard(), on_event=on_event)
    assert result.stopped_by == "answered"
    assert sum("on_event failed" in record.message for record in caplog.records) == 1


async def test_a_listener_that_hangs_leaves_time_for_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def listen(_event: TurnEvent) -> None:
        await asyncio.Event().wait()

    budget = TurnBudget.create(0.6, reserve_s=0.4)
    result = await run_turn(Script("done"), USER, [], new_guard(), budget, on_event=listen)
    assert result.text == "done"
    assert "on_event" in caplog.text


async def test_ctrl_c_in_an_asynchronous_listener_goes_on() -> None:
    async def listen(_event: TurnEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run_turn(Script("done"), USER, on_event=listen)


async def test_streaming_takes_the_same_calls_as_a_turn_without_it() -> None:
    rounds = [calls(("search", {"query": str(n)}), ("unknown", {})) for n in range(3)]
    plain = await run_turn(Script(*rounds, "done"), USER, [search], new_guard())
    events = [it async for it in stream_turn(Script(*rounds, "done"), USER, [search], new_guard())]
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].result.messages == plain.messages
