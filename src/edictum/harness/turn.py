"""run_turn: one turn of an agent, from the user's message to the final answer, in its budget."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

from edictum._callers import FromContext
from edictum.core.call import check_session_id
from edictum.errors import EdictumConfigError
from edictum.execution.captured import capture
from edictum.execution.portal import INTERRUPT_S, PORTAL
from edictum.execution.waiting import await_or_finish_later
from edictum.guard import Edictum
from edictum.harness._argument_checks import (
    check_arguments,
    check_messages,
    check_parking,
    check_tools,
)
from edictum.harness.artifact_reader import READER, make_reader
from edictum.harness.messages import ChatMessage, find_prompt
from edictum.harness.model_calls import OnModelCall, check_prices
from edictum.harness.parked_turn import ParkedTurn, restore_state
from edictum.harness.scheduler import ToolScheduler
from edictum.harness.tool_executor import BoundedToolExecutor
from edictum.harness.tool_registry import ToolRegistry
from edictum.harness.turn_budget import TurnBudget
from edictum.harness.turn_events import EventFeed, OnEvent, TurnEvent
from edictum.harness.turn_loop import Keep, OnOutcome, TurnLoop
from edictum.harness.turn_result import TurnResult
from edictum.harness.turn_state import TurnState

# of a turn without a budget: more than a coding agent needs, and still an end
DEFAULT_BUDGET: Final[dict[str, Any]] = {
    "timeout_s": 600,
    "max_steps": 100,
    "max_tool_calls": 200,
    "max_context_tokens": None,
}


async def run_turn(
    model: Callable[..., Any],
    messages: Sequence[ChatMessage] | ParkedTurn,
    tools: Any = (),
    guard: Edictum | None = None,
    budget: TurnBudget | None = None,
    *,
    session_id: str | FromContext | None = "",
    state: TurnState | None = None,
    artifact_store: Any = None,
    scheduler: ToolScheduler | None = None,
    parallel_enabled: bool = True,
    web_mode: str = "on",
    on_outcome: OnOutcome | None = None,
    on_model_call: OnModelCall | None = None,
    on_event: OnEvent | None = None,
    park: bool = False,
    keep: Keep | None = None,
    **executor_options: Any,
) -> TurnResult:
    """Run one turn.

    ``model(messages, tools)`` returns a ``ModelReply``, a text, or text and tool calls. It may be
    synchronous or asynchronous, and so may ``on_outcome(call, outcome)``, which is called when a
    call ends, ``on_model_call(call)``, and ``on_event(event)``, which gets every event as it
    happens. A turn that is cancelled leaves the conversation in ``state.messages``. ``session_id``
    may be a function of the ``ToolCallRequest``, as ``principal``, ``metadata``, ``amounts`` and
    ``parent_session_id`` may. Further options are those of ``BoundedToolExecutor``.

    With ``park`` a turn ends, ``stopped_by`` "approval", while a person is asked. It is resumed, in
    any process, with ``result.parked`` as ``messages``. ``keep(turn)`` stores such a ParkedTurn
    whenever a tool that must not run twice is about to start, and when a call has ended: a turn
    whose process was killed is resumed with the one stored last.
    """
    listeners = {"on_outcome": on_outcome, "on_model_call": on_model_call, "on_event": on_event}
    ports = {"guard": guard, "artifact_store": artifact_store, "scheduler": scheduler, "keep": keep}
    check_arguments(model=model, budget=budget, state=state, **ports, **listeners)
    registry, (conversation, resumed) = check_tools(tools), _read_messages(messages)
    state, chosen = _open_state(state, budget, session_id, artifact_store, resumed)
    loop = TurnLoop(
        model=model,
        messages=conversation,
        executor=BoundedToolExecutor(
            _add_reader(registry, artifact_store, state, guard),
            guard=guard,
            artifact_store=artifact_store,
            session_id=chosen,
            **executor_options,
        ),
        state=state,
        budget=state.budget,
        scheduler=scheduler or ToolScheduler(),
        parallel=parallel_enabled,
        web_mode=web_mode,
        on_outcome=on_outcome,
        on_model_call=on_model_call,
        feed=None if on_event is None else EventFeed(on_event),
        session_id="" if chosen else state.session_id or getattr(guard, "session_id", ""),
        park=check_parking(park, guard),
        keep=keep,
        resumed=resumed,
    )
    state.begin_turn()
    state.prompt = find_prompt(conversation) or state.prompt
    try:
        return await loop.run()
    finally:
        state.close_writes()


def run_turn_sync(
    model: Callable[..., Any],
    messages: Sequence[ChatMessage] | ParkedTurn,
    *args: Any,
    **options: Any,
) -> TurnResult:
    """Run one turn from synchronous code in any thread, even inside a running event loop.

    Listeners are called in another thread. A KeyboardInterrupt cancels the turn.
    """
    ended = threading.Event()

    async def run() -> TurnResult:
        try:
            return await run_turn(model, messages, *args, **options)
        finally:
            ended.set()

    try:
        return PORTAL.run(run())
    except KeyboardInterrupt:
        ended.wait(INTERRUPT_S)  # then state.messages is complete
        raise


async def stream_turn(
    model: Callable[..., Any],
    messages: Sequence[ChatMessage] | ParkedTurn,
    *args: Any,
    **options: Any,
) -> AsyncGenerator[TurnEvent, None]:
    """Run one turn, with the arguments of ``run_turn``, and yield its events as they happen.

    The last is ``TurnEnded``, with the result. Closing the generator cancels the turn.
    """
    events: asyncio.Queue[TurnEvent | None] = asyncio.Queue()
    turn = asyncio.create_task(
        run_turn(model, messages, *args, on_event=events.put_nowait, **options)
    )
    turn.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        await turn
    finally:
        await _end_turn(turn)


async def _end_turn(turn: asyncio.Task[TurnResult]) -> None:
    """Cancel a turn and wait for its end: then its state has the conversation.

    A web framework keeps cancelling the task of a client that has gone until the task has ended.
    """
    interrupts: list[asyncio.CancelledError] = []
    turn.cancel()
    await capture(await_or_finish_later(turn, on_cancel=interrupts.append))
    if interrupts:
        raise interrupts[-1]


def _read_messages(messages: Any) -> tuple[list[ChatMessage], ParkedTurn | None]:
    """Return the conversation so far, and the parked turn that it comes from, if any."""
    resumed = messages if isinstance(messages, ParkedTurn) else None
    return check_messages(messages if resumed is None else resumed.messages), resumed


def _open_state(
    state: TurnState | None,
    budget: TurnBudget | None,
    session_id: Any,
    store: Any,
    resumed: ParkedTurn | None,
) -> tuple[TurnState, FromContext | None]:
    """Return the state of a turn, and the function that chooses the session of each call."""
    if resumed is not None and resumed.session_id:
        session_id = _choose_session(resumed, session_id)
    if state is not None and session_id and state.session_id not in ("", session_id):
        problem = f"session_id is given beside a state of the session {state.session_id!r}."
        raise EdictumConfigError(problem, hint="Leave one of them out.")
    state = state if state is not None else TurnState()
    if budget is not None or state.has_default_budget:
        state.budget = budget if budget is not None else TurnBudget.create(**DEFAULT_BUDGET)
    if resumed is not None:
        restore_state(state, resumed, budget)
    check_prices(state.budget.price)
    if callable(session_id):
        if store is not None:  # a model reads the artifacts of one session
            problem = "session_id is a function, and there is an artifact_store."
            raise EdictumConfigError(problem, hint="Pass the session of the turn as text.")
        return state, session_id
    if session_id:
        check_session_id(session_id)
        state.session_id = session_id
    return state, None


def _choose_session(resumed: ParkedTurn, session_id: Any) -> str:
    """Return the session of a resumed turn: in another session its questions would not be found."""
    if session_id not in ("", None, resumed.session_id):
        problem = f"session_id is given beside a turn of the session {resumed.session_id!r}."
        raise EdictumConfigError(problem, hint="Leave it out.")
    return resumed.session_id


def _add_reader(
    tools: ToolRegistry, store: Any, state: TurnState, guard: Edictum | None
) -> ToolRegistry:
    """Return the tools with ``read_artifact``, if there is a store."""
    if store is None or READER in tools:
        return tools
    if not state.session_id:
        state.session_id = guard.session_id if guard is not None else f"turn-{uuid.uuid4().hex}"
    tools = ToolRegistry(tools)
    tools.register(make_reader(store, state.session_id), side_effect="read", store_output=False)
    return tools
