"""TurnLoop: one turn under way.

    model -> calls -> waves -> outcomes -> tool messages -> model ...

Every call that the model asked for gets its tool message, in the order of the calls, and the turn
ends in time. When steps, calls or time run out, the model is asked once more, without tools, for
the answer it can give; the reserve of the budget is kept for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum.core.decision import Failed
from edictum.core.redaction import shorten
from edictum.core.values import canonical, show
from edictum.execution.waiting import await_until, call_in_thread, capture_until
from edictum.harness.messages import (
    ChatMessage,
    ModelReply,
    add_calls,
    make_assistant_message,
    make_system_message,
    make_tool_message,
    to_reply,
)
from edictum.harness.scheduler import ToolScheduler
from edictum.harness.tool_executor import BoundedToolExecutor, ToolCallRequest
from edictum.harness.tool_spec import ToolSpec
from edictum.harness.turn_budget import TurnBudget, pluralize
from edictum.harness.turn_result import Stop, TurnResult
from edictum.harness.turn_state import TurnState
from edictum.outcomes import ToolOutcome, outcome_blocks_tool

logger = logging.getLogger("edictum")

WARN_AT = (0.95, 0.8, 0.5)
LOOP_ROUNDS = 3
MAX_ANSWERED = 1_000  # calls of one reply that have an outcome each, whatever the budget
MIN_ANSWER_S = 0.001
MIN_LISTENER_S = 0.1  # for on_outcome, when the time for tools is over
OnOutcome = Callable[[ToolCallRequest, ToolOutcome], Any]


class _LoopDetector:
    """Notices a model that repeats the same calls, or alternates between two sets of calls."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=2 * LOOP_ROUNDS)
        self.noticed: list[str] = []

    def add(self, calls: Sequence[ToolCallRequest]) -> str | None:
        """Record one round. Return what to tell the model if it is a loop."""
        self._last.append("".join(sorted(canonical([call.name, call.arguments]) for call in calls)))
        rounds, names = list(self._last), shorten(", ".join(call.name for call in calls), 200)
        if len(rounds) >= LOOP_ROUNDS and len(set(rounds[-LOOP_ROUNDS:])) == 1:
            seen = f"The same calls ({names}) were made {LOOP_ROUNDS} times in a row."
            text = f"{seen} Repeating them will not help: do something else."
        elif len(rounds) >= 4 and rounds[-4:-2] == rounds[-2:] and rounds[-1] != rounds[-2]:
            seen = f"The last calls ({names}) alternate with the ones before them"
            text = f"{seen}, without progress. Do something else."
        else:
            return None
        self.noticed.append(text)
        self._last.clear()
        return text


@dataclass(slots=True, kw_only=True)
class TurnLoop:
    """One turn under way."""

    model: Callable[..., Any]
    messages: list[ChatMessage]
    executor: BoundedToolExecutor
    state: TurnState
    budget: TurnBudget
    scheduler: ToolScheduler
    parallel: bool
    web_mode: str
    on_outcome: OnOutcome | None
    outcomes: list[ToolOutcome] = field(default_factory=list)
    warned_at: float = 0.0
    rounds: _LoopDetector = field(default_factory=_LoopDetector)

    async def run(self) -> TurnResult:
        stopped: Stop = "steps"
        text = ""
        try:
            while self.budget.claim_step():
                if (exhausted := self._find_exhausted_budget()) is not None:
                    stopped = exhausted
                    break
                time_s = self.budget.tool_time_s(self.budget.timeout_s)
                reply = await self._ask_model(tuple(self.executor.tools), time_s)
                text = reply.text
                if not reply.tool_calls:
                    return self._make_result(text, "answered")
                await self._run_calls(reply.tool_calls)
            return await self._ask_final_answer(text, stopped)
        except _OutOfTime:
            return await self._ask_final_answer(text, "deadline")
        except _ModelFailed as failed:
            return self._make_result(text, "model_error", failed.args[0])

    def _find_exhausted_budget(self) -> Stop | None:
        """Return which part of the budget leaves no room for another call, or None."""
        if self.budget.tool_time_s() <= 0:
            return "deadline"
        has_tools = len(self.executor.tools) > 0
        return "tool_calls" if has_tools and self._count_remaining_calls() <= 0 else None

    # --- The model --------------------------------------------------------------------------------

    async def _ask_model(self, tools: tuple[ToolSpec, ...], timeout_s: float) -> ModelReply:
        """Call the model once, within a time, and add its answer to the messages."""
        try:
            reply: ModelReply | Exception = await await_until(self._call_model(tools), timeout_s)
        except TimeoutError:  # the turn's own: what the model raises comes as a value
            raise _OutOfTime from None
        if isinstance(reply, Exception):
            raise _ModelFailed(reply) from reply
        self.state.add_tokens(**asdict(reply.usage))
        self.messages.append(make_assistant_message(reply, MAX_ANSWERED))
        return reply

    async def _call_model(self, tools: tuple[ToolSpec, ...]) -> ModelReply | Exception:
        call = partial(self.model, list(self.messages), tools)
        is_async = any(map(iscoroutinefunction, (self.model, type(self.model).__call__)))
        try:
            blocks = getattr(self.model, "blocks", not is_async)
            answer = await call_in_thread(call) if blocks else call()
            return to_reply(await answer if isawaitable(answer) else answer)
        except Exception as exc:
            return exc
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # after a cancellation from outside the value is not read
            # an Exception, so that a model's SystemExit does not end the process
            failure = RuntimeError(f"The model raised {show(exc)}.")
            failure.__cause__ = exc
            return failure

    async def _ask_final_answer(self, text: str, stopped: Stop) -> TurnResult:
        """Ask for the answer that can be given now, in the time that was reserved for it."""
        left_s = self.budget.remaining_s()
        if left_s >= MIN_ANSWER_S:
            over = "The budget of this turn is used up."
            self._tell_model(f"{over} Answer now with what you have; no tool can be called.")
            try:
                text = (await self._ask_model((), left_s)).text or text
            except _OutOfTime:
                stopped = "deadline"
            except _ModelFailed as failed:
                return self._make_result(text, "model_error", failed.args[0])
        return self._make_result(text, stopped)

    def _make_result(self, text: str, stopped: Stop, error: Exception | None = None) -> TurnResult:
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and "tool_calls" in last:
            # providers refuse calls without tool messages; a copy, because it may be the caller's
            self.messages[-1] = {key: each for key, each in last.items() if key != "tool_calls"}
        self.state.final_text = text
        self.state.timed_out = stopped == "deadline"
        return TurnResult(
            text=text,
            messages=tuple(self.messages),
            outcomes=tuple(self.outcomes),
            stopped_by=stopped,
            timed_out=stopped == "deadline",
            state=self.state,
            error=error,
            loops=tuple(self.rounds.noticed),
        )

    # --- The calls --------------------------------------------------------------------------------

    async def _run_calls(self, calls: Sequence[ToolCallRequest]) -> None:
        """Run the calls in waves, and add their tool messages in the order of the calls.

        The first ``MAX_ANSWERED`` have an outcome each; those behind them only while there is room
        in the budget, as answering 100,000 calls would take longer than the turn may.
        """
        outcomes: dict[int, ToolOutcome] = {}
        asked, asking = len(calls), self.messages[-1]
        for start in range(0, asked, MAX_ANSWERED):
            if start and self._find_exhausted_budget() is not None:
                calls = calls[:start]
                break
            some = calls[start : start + MAX_ANSWERED]
            if start:
                add_calls(asking, some)
            for wave in self._list_waves(some):
                done = await asyncio.gather(*(self._execute(call) for call in wave))
                outcomes |= zip(map(id, wave), done, strict=True)
        for call in calls:
            outcome = outcomes[id(call)]
            self.messages.append(make_tool_message(call.id, outcome))
            self.outcomes.append(outcome)
        if len(calls) < asked:
            left_out = f"{asked - len(calls)} of {asked} calls in one reply were left out"
            logger.warning("%s: the budget of the turn has no room for them.", left_out)
            self._tell_model(f"{left_out}: the budget of this turn has no room for them.")
        self._add_notes(calls, outcomes.values())

    def _list_waves(self, calls: Sequence[ToolCallRequest]) -> Iterator[list[ToolCallRequest]]:
        """Yield the scheduler's waves, with each call once even if the scheduler says otherwise."""
        waiting = {id(call): call for call in calls}
        tools = self.executor.tools.under(self.executor.guard.policy)
        for wave in self.scheduler.schedule(calls, tools, self.parallel):
            yield [waiting.pop(id(call)) for call in wave.calls if id(call) in waiting]
        yield from ([call] for call in waiting.values())

    async def _execute(self, call: ToolCallRequest) -> ToolOutcome:
        outcome = await self.executor.aexecute(
            call, self.state, budget=self.budget, web_mode=self.web_mode
        )
        await self._notify(call, outcome)
        return outcome

    async def _notify(self, call: ToolCallRequest, outcome: ToolOutcome) -> None:
        """Call the listener. Its failure is logged; the calls beside this one go on."""
        error: BaseException | None = None
        try:
            heard = None if self.on_outcome is None else self.on_outcome(call, outcome)
            if isawaitable(heard):
                left_s = max(
                    self.budget.tool_time_s(self.budget.timeout_s),
                    min(MIN_LISTENER_S, self.budget.remaining_s() / 2),
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

    def _add_notes(self, calls: Sequence[ToolCallRequest], outcomes: Iterable[ToolOutcome]) -> None:
        """Tell the model about loops, blocked tools, late results, and the budget that is left."""
        if loop := self.rounds.add(calls):
            self._tell_model(loop)
        blocked = (outcome for outcome in outcomes if outcome_blocks_tool(outcome))
        for text in dict.fromkeys(map(_explain_block, blocked)):
            self._tell_model(text)
        for late in self.state.late_completions():
            call = f"The call of {late.tool_name} that timed out earlier"
            self._tell_model(f"{call} has ended meanwhile; its effect may have taken place.")
        used = self.budget.used
        level = next((level for level in WARN_AT if used >= level), 0.0)
        if level > self.warned_at:
            self.warned_at = level
            left = self.budget.snapshot()
            steps = pluralize(left["steps_max"] - left["steps_used"], "step")
            calls_left = pluralize(self._count_remaining_calls(), "tool call")
            rest = f"{steps}, {calls_left} and {left['remaining_s']:.0f} s are left."
            self._tell_model(f"{level:.0%} of this turn's budget is used: {rest}")

    def _tell_model(self, text: str) -> None:
        self.messages.append(make_system_message(text))

    def _count_remaining_calls(self) -> int:
        left = self.budget.snapshot()
        return int(left["tool_calls_max"] - left["tool_calls_used"])


def _explain_block(outcome: ToolOutcome) -> str:
    """Return why a tool is blocked, and what the model can do instead."""
    lost = f"{outcome.tool_name} is not called again in this turn"
    if not getattr(outcome, "effect_unknown", False):
        return f"{lost}: it failed in a way that will not heal. Go on without it."
    verify = getattr(outcome, "verify_tool", None)
    what = "If you cannot find out, say so in your answer."
    if verify:
        what = f"Look with {verify}, and answer with what you find."
    return f"{lost}, because it may have taken effect. {what}"


class _OutOfTime(Exception):
    """The turn's time for tools was over before the model answered."""


class _ModelFailed(Exception):
    """The model raised this, or returned something that is not a reply."""
