"""run_turn: one turn of an agent, from the user's message to the final answer, within its budget.

    model -> calls -> waves -> outcomes -> tool messages -> model ...

Whatever happens, every call that the model asked for gets its tool message, in the order of the
calls, and the turn ends in time. When steps, calls or time run out, the model is asked once more,
without tools, for the answer it can give; the reserve of the budget is kept for that.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Literal

from edictum.core.decide import describe
from edictum.core.decision import Failed
from edictum.core.jsonable import show
from edictum.core.redaction import shorten
from edictum.execution.portal import PORTAL
from edictum.execution.waiting import await_until, call_in_thread, capture_until
from edictum.guard import Edictum
from edictum.harness.artifact_reader import READER, make_reader
from edictum.harness.canonical import canonical
from edictum.harness.given import check_parts, check_store, messages_of, tools_of
from edictum.harness.messages import (
    Message,
    ModelReply,
    as_reply,
    assistant_message,
    note,
    tool_message,
)
from edictum.harness.scheduler import ToolScheduler
from edictum.harness.tool_executor import BoundedToolExecutor, ToolCallRequest
from edictum.harness.tool_registry import ToolRegistry
from edictum.harness.tool_spec import ToolSpec
from edictum.harness.turn_budget import TurnBudget, counted
from edictum.harness.turn_state import TurnState
from edictum.outcomes import (
    ToolOutcome,
    outcome_blocks_tool,
    outcome_is_error,
    outcome_to_model_content,
)

logger = logging.getLogger("edictum")

Stop = Literal["answered", "steps", "tool_calls", "deadline", "model_error"]
WARN_AT = (0.95, 0.8, 0.5)
LOOP_ROUNDS = 3
MIN_ANSWER_S = 0.001
LISTEN_S = 0.1  # for on_outcome, when the time for tools is over


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What a turn came to. ``messages`` is the whole conversation, the new messages included."""

    text: str
    messages: tuple[Message, ...]
    outcomes: tuple[ToolOutcome, ...]
    stopped_by: Stop
    timed_out: bool
    state: TurnState
    error: Exception | None = None
    loops: tuple[str, ...] = ()


async def run_turn(
    model: Callable[..., Any],
    messages: Sequence[Message],
    tools: Any = (),
    guard: Edictum | None = None,
    budget: TurnBudget | None = None,
    *,
    session_id: str = "",
    state: TurnState | None = None,
    artifact_store: Any = None,
    scheduler: ToolScheduler | None = None,
    parallel_enabled: bool = True,
    web_mode: str = "on",
    on_outcome: Callable[[ToolCallRequest, ToolOutcome], Any] | None = None,
    **executor_options: Any,
) -> TurnResult:
    """Run one turn.

    ``model(messages, tools)`` returns a ``ModelReply``, a text, or text and tool calls; it may be
    synchronous or asynchronous, and so may ``on_outcome(call, outcome)``, which is told of every
    call as it ends. Further options are those of ``BoundedToolExecutor``.
    """
    check_parts(
        model=model,
        guard=guard,
        budget=budget,
        state=state,
        scheduler=scheduler,
        on_outcome=on_outcome,
    )
    check_store(artifact_store)
    conversation, registry = messages_of(messages), tools_of(tools)
    state = state if state is not None else TurnState(session_id, budget)
    registry = _with_reader(registry, artifact_store, state, guard)
    executor = BoundedToolExecutor(
        registry, guard=guard, artifact_store=artifact_store, **executor_options
    )
    loop = _Loop(
        model,
        conversation,
        executor,
        state,
        budget or state.budget,
        scheduler or ToolScheduler(),
        parallel_enabled,
        web_mode,
        on_outcome,
    )
    try:
        return await loop.run()
    finally:
        state.close_writes()


def run_turn_sync(
    model: Callable[..., Any], messages: Sequence[Message], *args: Any, **options: Any
) -> TurnResult:
    """As ``run_turn``, from synchronous code in any thread, inside or outside a running event
    loop.
    """
    return PORTAL.run(run_turn(model, messages, *args, **options))


def _with_reader(
    tools: ToolRegistry, store: Any, state: TurnState, guard: Edictum | None
) -> ToolRegistry:
    """The tools, with the reader of stored outputs if there is a store: a reference without a
    reader leads nowhere.
    """
    if store is None or READER in tools:
        return tools
    if not state.session_id:
        state.session_id = (
            guard.session_id if guard is not None else f"turn-{uuid.uuid4().hex}"
        )  # nobody else's
    reader = ToolRegistry(tools)
    reader.register(make_reader(store, state.session_id), side_effect="read", store_output=False)
    return reader


class _Loop:
    """One turn under way."""

    def __init__(
        self,
        model: Callable[..., Any],
        messages: list[Message],
        executor: BoundedToolExecutor,
        state: TurnState,
        budget: TurnBudget,
        scheduler: ToolScheduler,
        parallel: bool,
        web_mode: str,
        on_outcome: Callable[[ToolCallRequest, ToolOutcome], Any] | None,
    ) -> None:
        self._model = model
        self._messages = messages
        self._executor = executor
        self._state = state
        self._budget = budget
        self._scheduler = scheduler
        self._parallel = parallel
        self._web_mode = web_mode
        self._on_outcome = on_outcome
        self._outcomes: list[ToolOutcome] = []
        self._warned = 0.0
        self._rounds = _Rounds()

    async def run(self) -> TurnResult:
        stopped: Stop = "steps"
        text = ""
        try:
            while self._budget.claim_step():
                if (used_up := self._used_up()) is not None:
                    stopped = used_up
                    break
                reply = await self._ask(
                    tuple(self._executor.tools), self._budget.tool_time_s(self._budget.timeout_s)
                )
                text = reply.text
                if not reply.tool_calls:
                    return self._result(text, "answered")
                await self._answer_calls(reply.tool_calls)
            return await self._last_words(text, stopped)
        except _Late:
            return await self._last_words(text, "deadline")
        except _ModelFailed as failed:
            return self._result(text, "model_error", failed.error)

    def _used_up(self) -> Stop | None:
        """What leaves no room for another call. A repeated one would still be answered, but its
        answer is in the messages already.
        """
        if self._budget.tool_time_s() <= 0:
            return "deadline"
        return "tool_calls" if self._calls_left() <= 0 and len(self._executor.tools) else None

    # --- The model --------------------------------------------------------------------------------

    async def _ask(self, tools: tuple[ToolSpec, ...], timeout_s: float) -> ModelReply:
        """One model call, bounded. Its answer is added to the messages."""
        try:
            reply: ModelReply | Exception = await await_until(self._call_model(tools), timeout_s)
        except TimeoutError:  # of the turn: what the model raises comes as a value
            raise _Late from None
        if isinstance(reply, Exception):
            raise _ModelFailed(reply) from reply
        self._state.add_tokens(
            reply.usage.input_tokens,
            reply.usage.output_tokens,
            reply.usage.cache_read_tokens,
            reply.usage.cache_creation_tokens,
        )
        self._messages.append(assistant_message(reply))
        return reply

    async def _call_model(self, tools: tuple[ToolSpec, ...]) -> ModelReply | Exception:
        asked = partial(self._model, list(self._messages), tools)
        blocks = getattr(self._model, "blocks", not _is_asynchronous(self._model))
        try:
            answer = await call_in_thread(asked) if blocks else asked()
            return as_reply(await answer if isawaitable(answer) else answer)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # if it was cancelled from outside, nobody reads this
            return _as_error(exc)

    async def _last_words(self, text: str, stopped: Stop) -> TurnResult:
        """The budget is used up: ask for the answer that can be given now, in the time that was
        kept for it.
        """
        left_s = self._budget.remaining_s()
        if left_s >= MIN_ANSWER_S:
            self._messages.append(
                note(
                    "The budget of this turn is used up. Answer now with what you have; no tool can"
                    " be called."
                )
            )
            try:
                text = (await self._ask((), left_s)).text or text
            except _Late:
                stopped = "deadline"
            except _ModelFailed as failed:
                return self._result(text, "model_error", failed.error)
        return self._result(text, stopped)

    def _result(self, text: str, stopped: Stop, error: Exception | None = None) -> TurnResult:
        self._drop_unanswered()
        self._state.final_text = text
        self._state.timed_out = stopped == "deadline"
        return TurnResult(
            text=text,
            messages=tuple(self._messages),
            outcomes=tuple(self._outcomes),
            stopped_by=stopped,
            timed_out=stopped == "deadline",
            state=self._state,
            error=error,
            loops=tuple(self._rounds.noticed),
        )

    def _drop_unanswered(self) -> None:
        """Calls in the model's last words were not offered and are not made; a message with calls
        and no answers would be refused.
        """
        last = self._messages[-1] if self._messages else {}
        if last.get("role") == "assistant" and "tool_calls" in last:
            self._messages[-1] = {
                name: value for name, value in last.items() if name != "tool_calls"
            }  # it may be the caller's

    # --- The calls --------------------------------------------------------------------------------

    async def _answer_calls(self, calls: Sequence[ToolCallRequest]) -> None:
        """Run the calls in waves; each gets its tool message, in the order in which they were asked
        for.
        """
        outcomes: dict[int, ToolOutcome] = {}
        places = {id(call): place for place, call in enumerate(calls)}
        for wave in self._waves(calls):
            done = await asyncio.gather(*(self._execute(call) for call in wave))
            outcomes.update(
                (places[id(call)], outcome) for call, outcome in zip(wave, done, strict=True)
            )
        for place, call in enumerate(calls):
            message = tool_message(call.id, outcome_to_model_content(outcomes[place]))
            self._messages.append(
                {**message, "is_error": True} if outcome_is_error(outcomes[place]) else message
            )
            self._outcomes.append(outcomes[place])
        self._tell(calls, outcomes.values())

    def _waves(self, calls: Sequence[ToolCallRequest]) -> Iterator[list[ToolCallRequest]]:
        """The waves of the scheduler. It may be the user's own: each call is made once all the
        same; one that it forgets comes last.
        """
        waiting = {id(call): call for call in calls}
        tools = self._executor.tools.as_under(self._executor.guard.policy)
        for wave in self._scheduler.schedule(calls, tools, self._parallel):
            yield [waiting.pop(id(call)) for call in wave.calls if id(call) in waiting]
        yield from ([call] for call in waiting.values())

    async def _execute(self, call: ToolCallRequest) -> ToolOutcome:
        outcome = await self._executor.aexecute(
            call, self._state, budget=self._budget, web_mode=self._web_mode
        )
        if self._on_outcome is not None:
            await self._notify(self._on_outcome, call, outcome)
        return outcome

    async def _notify(
        self,
        listener: Callable[[ToolCallRequest, ToolOutcome], Any],
        call: ToolCallRequest,
        outcome: ToolOutcome,
    ) -> None:
        """Whatever becomes of the listener, the calls beside this one go on, and so does the
        turn.
        """
        error: BaseException | None = None
        try:
            heard = listener(call, outcome)
            if isawaitable(heard):
                left_s = max(
                    self._budget.tool_time_s(self._budget.timeout_s),
                    min(LISTEN_S, self._budget.remaining_s() / 2),
                )
                result = await capture_until(heard, left_s)
                error = result.error if isinstance(result, Failed) else None
        except Exception as exc:
            error = exc
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error is not None:
            logger.error(
                "on_outcome failed for the call %s of %s", call.id, call.name, exc_info=error
            )

    def _tell(self, calls: Sequence[ToolCallRequest], outcomes: Iterable[ToolOutcome]) -> None:
        """What the model should know before it goes on: loops, tools it has lost, results that came
        late, what of the budget is left.
        """
        texts = [loop] if (loop := self._rounds.add(calls)) else []
        texts += dict.fromkeys(
            _lost_text(outcome) for outcome in outcomes if outcome_blocks_tool(outcome)
        )
        texts += [
            f"The call of {late.tool_name} that timed out earlier has ended meanwhile; its effect"
            " may have taken place."
            for late in self._state.late_completions()
        ]
        used = self._budget.used
        level = next((level for level in WARN_AT if used >= level), 0.0)
        if level > self._warned:
            self._warned = level
            texts.append(self._budget_text(level))
        self._messages += [note(text) for text in texts]

    def _budget_text(self, level: float) -> str:
        left = self._budget.snapshot()
        steps = counted(left["steps_max"] - left["steps_used"], "step")
        calls = counted(self._calls_left(), "tool call")
        return (
            f"{level:.0%} of this turn's budget is used: {steps}, {calls} and"
            f" {left['remaining_s']:.0f} s are left."
        )

    def _calls_left(self) -> int:
        left = self._budget.snapshot()
        return int(left["tool_calls_max"] - left["tool_calls_used"])


def _lost_text(outcome: ToolOutcome) -> str:
    """Until when a tool is blocked, and what can be done instead: of the outcome itself the model
    only knows that it went wrong.
    """
    lost = f"{outcome.tool_name} is not called again in this turn"
    if not getattr(outcome, "effect_unknown", False):
        return f"{lost}: it failed in a way that will not heal. Go on without it."
    verify = getattr(outcome, "verify_tool", None)
    what = (
        f"Look with {verify}, and answer with what you find."
        if verify
        else "If you cannot find out, say so in your answer."
    )
    return f"{lost}, because it may have taken effect. {what}"


def _is_asynchronous(model: Any) -> bool:
    return iscoroutinefunction(model) or iscoroutinefunction(type(model).__call__)


def _as_error(error: BaseException) -> Exception:
    """A SystemExit of a model is the model's failure, and must not end whoever raises it again."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"The model raised {show(error)}.")
    failure.__cause__ = error
    return failure


class _Late(Exception):
    """The turn's time for tools is over while the model is thinking."""


class _ModelFailed(Exception):
    """The model raised, or answered with something that is no answer."""

    def __init__(self, error: Exception) -> None:
        super().__init__(describe(error))
        self.error = error


class _Rounds:
    """Notices a model that goes in circles: the same calls again and again, or two sets of calls in
    turns.
    """

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=2 * LOOP_ROUNDS)
        self.noticed: list[str] = []

    def add(self, calls: Sequence[ToolCallRequest]) -> str | None:
        """Note one round. Returns what to tell the model when it is a loop."""
        self._last.append("".join(sorted(canonical([call.name, call.arguments]) for call in calls)))
        rounds = list(self._last)
        names = shorten(", ".join(call.name for call in calls), 200)
        text = None
        if len(rounds) >= LOOP_ROUNDS and len(set(rounds[-LOOP_ROUNDS:])) == 1:
            text = (
                f"The same calls ({names}) were made {LOOP_ROUNDS} times in a row. Repeating them"
                " will not help: do something else."
            )
        elif len(rounds) >= 4 and rounds[-4:-2] == rounds[-2:] and rounds[-1] != rounds[-2]:
            text = (
                f"The last calls ({names}) alternate with the ones before them, without progress."
                " Do something else."
            )
        if text is not None:
            self.noticed.append(text)
            self._last.clear()
        return text
