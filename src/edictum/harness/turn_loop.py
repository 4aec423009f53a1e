"""TurnLoop: one turn under way.

    model -> calls -> waves -> outcomes -> tool messages -> model ...

Every call that the model asked for gets its tool message, in the order of the calls, and the turn
ends in time. When steps, calls or time run out, the model is asked once more, without tools, for
the best answer that it can give now; the reserve of the budget is kept for that. Calls of a reply
that was cut off are refused, and the turn ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum._logs import CALLBACK_FAILED, TURN_BUDGET, log
from edictum.core.decision import USER_ERRORS
from edictum.core.parking import (
    ApprovalPending,
    GoingOn,
    Park,
    raise_pending,
    wait_for_answer,
)
from edictum.core.redaction import shorten
from edictum.core.turn import Refusal
from edictum.core.values import canonical, show
from edictum.execution.waiting import (
    await_or_finish_later,
    await_until,
    call_until,
    is_being_cancelled,
    run_in_thread,
    value_of,
)
from edictum.harness.call_round import CallRound
from edictum.harness.messages import (
    ChatMessage,
    ModelReply,
    add_calls,
    drop_calls,
    make_assistant_message,
    make_system_message,
    to_reply,
)
from edictum.harness.model_calls import (
    ModelCall,
    OnModelCall,
    check_usage,
    count_tokens,
    find_cost,
    separate_usage,
)
from edictum.harness.models import can_stream
from edictum.harness.parked_turn import ParkedTurn, keep_tokens
from edictum.harness.scheduler import ToolScheduler
from edictum.harness.tool_executor import BoundedToolExecutor, ToolCallRequest
from edictum.harness.tool_spec import ToolSpec
from edictum.harness.turn_budget import TurnBudget, pluralize
from edictum.harness.turn_events import (
    EventFeed,
    ReplyRelay,
    ToolCallEnded,
    ToolCallMade,
    TurnEnded,
)
from edictum.harness.turn_result import StoppedBy, TurnResult
from edictum.harness.turn_state import TurnState
from edictum.outcomes import ToolDenied, ToolOutcome, outcome_blocks_tool

WARN_AT = (0.95, 0.8, 0.5)
LOOP_ROUNDS = 3
MAX_ANSWERED = 1_000  # calls of one reply that have an outcome each, whatever the budget
MIN_ANSWER_S = 0.001
MIN_LISTENER_S = 0.1  # for a listener, when the time for tools is over
OnOutcome = Callable[[ToolCallRequest, ToolOutcome], Any]
Keep = Callable[[ParkedTurn], Any]
# how a reply ends the turn; "tool_calls" and "paused" do not
CALL_ENDS: dict[str, StoppedBy] = {
    "end": "answered",
    "length": "length",
    "refused": "refused",
    "content_filter": "content_filter",
}
# why the calls of a reply are not made: the reply is incomplete, or not what the model meant
REFUSALS = {
    stop_reason: Refusal("incomplete_reply", f"The reply {how}, so this call was not made.")
    for stop_reason, how in (
        ("length", "was cut off at its greatest length"),
        ("refused", "ended as a refusal"),
        ("content_filter", "was cut off by a content filter"),
    )
}


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
    on_model_call: OnModelCall | None
    feed: EventFeed | None
    session_id: str = ""  # of its calls; empty if a function chooses it
    park: bool = False
    keep: Keep | None = None
    keeping: asyncio.Lock = field(default_factory=asyncio.Lock)
    resumed: ParkedTurn | None = None
    parked: ParkedTurn | None = None  # once calls wait for a person
    outcomes: list[ToolOutcome] = field(default_factory=list)
    model_calls: list[ModelCall] = field(default_factory=list)
    notes: list[ChatMessage] = field(default_factory=list)  # in messages too, during the turn
    reply: ModelReply | None = None  # the last
    text: str = ""
    partial_text: str = ""  # the text of a reply up to where it broke off
    warned_at: float = 0.0
    rounds: _LoopDetector = field(default_factory=_LoopDetector)

    def __post_init__(self) -> None:
        if self.resumed is not None:
            self.outcomes, self.text = list(self.resumed.outcomes), self.resumed.text

    async def run(self) -> TurnResult:
        """Run the turn. The state gets the conversation, even when the turn is cancelled."""
        try:
            result = await self._run()
            if self.feed is not None:
                self.feed.emit(TurnEnded(result))
                await self.feed.drain(self._listener_time_s())
            return result
        finally:
            if self.feed is not None:
                self.feed.close()
            self._keep_partial_text()
            self.state.messages = self._list_messages()

    async def _run(self) -> TurnResult:
        stopped: StoppedBy = "steps"
        try:
            if self.resumed is not None:
                await self._run_calls(self.resumed.calls, resumed=self.resumed)
            while self.parked is None and self.budget.claim_step():
                if (exhausted := self._find_exhausted_budget()) is not None:
                    stopped = exhausted
                    break
                time_s = self.budget.tool_time_s(self.budget.timeout_s)
                reply = await self._ask_model(tuple(self.executor.tools), time_s)
                refusal = REFUSALS.get(reply.stop_reason)
                if reply.tool_calls:
                    await self._run_calls(reply.tool_calls, refusal)
                if (ended_by := CALL_ENDS.get(reply.stop_reason)) is not None:
                    return self._make_result(ended_by)
            if self.parked is not None:
                return self._make_result("approval")
            return await self._ask_final_answer(stopped)
        except _OutOfTime:
            return await self._ask_final_answer("deadline")
        except _ModelFailed as failed:
            return self._make_result("model_error", failed.args[0])

    def _find_exhausted_budget(self) -> StoppedBy | None:
        """Return which part of the budget does not allow another step, or None."""
        if (spent := self.budget.find_used_up_limit()) is not None:
            return spent
        if self.budget.tool_time_s() <= 0:
            return "deadline"
        has_tools = len(self.executor.tools) > 0
        return "tool_calls" if has_tools and self._count_remaining_calls() <= 0 else None

    # --- The model --------------------------------------------------------------------------------

    async def _ask_model(self, tools: tuple[ToolSpec, ...], timeout_s: float) -> ModelReply:
        """Call the model once, for at most ``timeout_s``, and add its reply to the messages."""
        started = time.perf_counter()
        reply = await self._receive_reply(tools, timeout_s)
        duration_s = time.perf_counter() - started
        call, problem = self._count_model_call(reply, duration_s)
        self.model_calls.append(call)
        await self._notify("on_model_call", self.on_model_call, call)
        if self.feed is not None:
            self.feed.emit(call)
            await self.feed.drain(self._listener_time_s())
        if isinstance(problem, _OutOfTime):
            raise problem
        if problem is not None:
            raise _ModelFailed(problem) from problem
        assert isinstance(reply, ModelReply)  # else there is a problem
        self._add_reply(reply)
        return reply

    async def _receive_reply(
        self, tools: tuple[ToolSpec, ...], timeout_s: float
    ) -> ModelReply | Exception:
        """Return what the model returned or raised, or that it did not answer in time."""
        relay = None if self.feed is None else ReplyRelay(self.feed)
        try:
            answer = await await_until(self._call_model(tools, relay), timeout_s)
        except TimeoutError as exc:  # the turn's own: what the model raises comes as a value
            answer = _OutOfTime(*exc.args)
        finally:
            if relay is not None:
                relay.flush()
                self.partial_text = relay.text
                relay.close()
        if isinstance(answer, ModelReply):
            self.partial_text = answer.text
        return answer  # type: ignore[no-any-return]  # of await_until: what _call_model returns

    async def _call_model(
        self, tools: tuple[ToolSpec, ...], relay: ReplyRelay | None
    ) -> ModelReply | Exception:
        call = partial(self.model, list(self.messages), tools)
        if relay is not None and can_stream(self.model):
            call = partial(call, on_event=relay)
        is_async = any(map(iscoroutinefunction, (self.model, type(self.model).__call__)))
        try:
            blocks = getattr(self.model, "blocks", not is_async)
            answer = value_of(await run_in_thread(call)) if blocks else call()
            reply = to_reply(await answer if isawaitable(answer) else answer)
            if relay is not None:
                relay.complete(reply)
            return reply
        except Exception as exc:
            return exc
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # after a cancellation from outside the value is not read
            # an Exception, so that a model's SystemExit does not end the process
            failure = RuntimeError(f"The model raised {show(exc)}.")
            failure.__cause__ = exc
            return failure

    def _count_model_call(
        self, reply: ModelReply | Exception, duration_s: float
    ) -> tuple[ModelCall, Exception | None]:
        """Charge a call to the budget. Return it, and the reason why its reply cannot be used, if
        any.
        """
        step = len(self.model_calls) + 1
        if isinstance(reply, Exception):
            return ModelCall(step=step, duration_s=duration_s, error=reply), reply
        usage = separate_usage(reply)
        call = ModelCall(
            step=step,
            duration_s=duration_s,
            usage=usage,
            tokens=count_tokens(usage),
            stop_reason=reply.stop_reason,
            model=reply.model,
            response_id=reply.response_id,
        )
        self.state.add_tokens(**asdict(reply.usage))
        problem: Exception | None = None
        try:
            call = replace(call, cost=find_cost(call, self.budget.price))
            check_usage(call, self.budget)
        except Exception as exc:  # of a user-supplied function: what cannot be counted is not used
            problem, call = exc, replace(call, error=exc)
        self.budget.add_usage(call.tokens, call.cost or 0.0, call.tokens)
        return call, problem

    def _add_reply(self, reply: ModelReply) -> None:
        goes_on = self.reply is not None and self.reply.stop_reason == "paused"
        self.text = f"{self.text if goes_on else ''}{reply.text or reply.refusal}"
        self.reply, self.partial_text = reply, ""
        self.messages.append(make_assistant_message(reply, MAX_ANSWERED))

    async def _ask_final_answer(self, stopped: StoppedBy) -> TurnResult:
        """Ask for the best answer that can be given now, in the time that was reserved for it.

        Tokens and money have no reserve: once they are used up, the model is not asked again.
        """
        if (spent := self.budget.find_used_up_limit()) is not None:
            return self._make_result(spent)
        self._keep_partial_text()
        left_s, text = self.budget.remaining_s(), self.text
        if left_s >= MIN_ANSWER_S:
            over = "The budget of this turn is used up."
            self._tell_model(f"{over} Answer now with what you have; no tool can be called.")
            try:
                await self._ask_model((), left_s)
            except _OutOfTime:
                stopped = "deadline"
            except _ModelFailed as failed:
                return self._make_result("model_error", failed.args[0])
            self.text = self.text or text
        return self._make_result(stopped)

    def _make_result(self, stopped: StoppedBy, error: Exception | None = None) -> TurnResult:
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and "tool_calls" in last:
            # providers refuse calls without tool messages; a copy, because it may be the caller's
            self.messages[-1] = drop_calls(last)
        self._keep_partial_text()
        reply, is_late = self.reply, stopped == "deadline"
        self.state.final_text, self.state.timed_out = self.text, is_late
        return TurnResult(
            text=self.text,
            messages=self._list_messages(),
            outcomes=tuple(self.outcomes),
            stopped_by=stopped,
            timed_out=is_late,
            state=self.state,
            error=error,
            loops=tuple(self.rounds.noticed),
            notes=tuple(note["content"] for note in self.notes),
            stop_reason=None if reply is None else reply.stop_reason,
            model_calls=tuple(self.model_calls),
            parsed=None if reply is None else reply.parsed,
            parse_error="" if reply is None else reply.parse_error,
            parked=self.parked,
        )

    def _keep_partial_text(self) -> None:
        """Add the text of a reply that broke off, without its calls."""
        if self.partial_text:
            self.text = self.partial_text
            self.messages.append(make_assistant_message(ModelReply(self.partial_text)))
            self.partial_text = ""

    def _list_messages(self) -> tuple[ChatMessage, ...]:
        """Return the conversation without the turn's notes."""
        notes = {id(note) for note in self.notes}
        return tuple(message for message in self.messages if id(message) not in notes)

    # --- The calls --------------------------------------------------------------------------------

    async def _run_calls(
        self,
        calls: Sequence[ToolCallRequest],
        refusal: Refusal | None = None,
        resumed: ParkedTurn | None = None,
    ) -> None:
        """Run the calls in waves, and add their tool messages in the order of the calls.

        The first ``MAX_ANSWERED`` have an outcome each; those behind them only while there is room
        in the budget, as answering 100,000 calls would take longer than the turn may. After a call
        that waits for a person no further wave begins.
        """
        round_ = CallRound(calls)
        if resumed is not None:
            round_ = CallRound(calls, resumed.ended, resumed.started, goes_on=True)
        asked, asking = len(calls), self.messages[-1]
        try:
            for start in range(0, asked, MAX_ANSWERED):
                if start and self._find_exhausted_budget() is not None:
                    break
                some = calls[start : start + MAX_ANSWERED]
                if start >= len(asking.get("tool_calls", ())):
                    add_calls(asking, some)
                round_.answered = start + len(some)
                for wave in self._list_waves(round_.list_open(some)):
                    if round_.waiting:
                        break
                    await asyncio.gather(*(self._execute(it, refusal, round_) for it in wave))
                if round_.waiting:
                    await self._park(round_)
                    break
        finally:  # a cancelled turn hands back what has happened
            for call in round_.list_ends():
                self.messages.append(call.message)
                self.outcomes.append(call.outcome)
        answered = round_.answered
        if answered < asked:
            left_out = f"{asked - answered} of {asked} calls in one reply were left out"
            log(TURN_BUDGET, "%s: the budget of the turn has no room for them.", left_out)
            self._tell_model(f"{left_out}: the budget of this turn has no room for them.")
        self._add_notes(calls[:answered], self.outcomes[-answered:])

    async def _park(self, round_: CallRound) -> None:
        self.parked = self._describe_turn(round_)
        await self._store_progress(round_, self.parked.calls[-1])

    async def _store_progress(self, round_: CallRound, call: ToolCallRequest) -> None:
        """Have ``keep`` store the turn. If it fails, the turn stored before is still valid."""
        if self.keep is not None:
            await self._notify("keep", lambda _: self._keep_turn(round_), call)

    async def _keep_turn(self, round_: CallRound, starts: ToolCallRequest | None = None) -> None:
        """Have ``keep`` store the turn as it is, even if the caller is cancelled; ``starts``: a
        call whose tool is started next.
        """
        if starts is not None:
            round_.start(starts)
        await await_or_finish_later(self._store_turn(round_))

    async def _store_turn(self, round_: CallRound) -> None:
        async with self.keeping:  # so that the newest is stored last
            assert self.keep is not None
            await call_until(self.keep, (self._describe_turn(round_),), None)

    def _describe_turn(self, round_: CallRound) -> ParkedTurn:
        """Return the turn as data. The conversation ends with the reply that makes the calls."""
        state, waiting = self.state, len(round_.waiting)
        return ParkedTurn(
            approval_ids=tuple(request.approval_id for request in round_.waiting.values()),
            session_id=self.session_id,
            messages=self._list_messages(),
            calls=tuple(round_.calls[: round_.answered]),
            ended=round_.find_ends(),
            started=round_.list_starts(),
            outcomes=tuple(self.outcomes),
            text=self.text,
            blocked=tuple(sorted(state.blocked_tool_names)),
            tokens=keep_tokens(state),
            budget=self.budget.to_dict(calls_given_back=waiting),
            replay=state.replay.to_dict(),
        )

    def _list_waves(self, calls: Sequence[ToolCallRequest]) -> Iterator[list[ToolCallRequest]]:
        """Yield the scheduler's waves, with each call once even if the scheduler says otherwise."""
        waiting = {id(call): call for call in calls}
        tools = self.executor.tools.under(self.executor.guard.policy)
        for wave in self.scheduler.schedule(calls, tools, self.parallel):
            yield [waiting.pop(id(call)) for call in wave.calls if id(call) in waiting]
        yield from ([call] for call in waiting.values())

    async def _execute(
        self,
        call: ToolCallRequest,
        refusal: Refusal | None,
        round_: CallRound,
    ) -> None:
        """Run one call."""
        turn = self.executor.turn(self.state, budget=self.budget, web_mode=self.web_mode)
        if refusal is not None:
            turn.deny_calls("reply", refusal)
        elif (interrupted := round_.find_refusal(call)) is not None:
            turn.deny_calls("resumed", interrupted)
        if self.keep is not None:
            turn.keep_start = partial(self._keep_turn, round_, call)
        round_.begin(call)
        if self.feed is not None:
            self.feed.emit(ToolCallMade(call))
        try:
            outcome = await self.executor.aexecute_in(call, turn, park=self._choose_park(round_))
        except ApprovalPending as pending:
            round_.wait(call, pending.request)
            return
        except BaseException:  # a cancelled call has an outcome too
            round_.end(call, turn.last_outcome)
            raise
        round_.end(call, outcome)
        await self._store_progress(round_, call)
        if self.feed is not None:
            self.feed.emit(ToolCallEnded(call, outcome))
        if self.on_outcome is not None:
            await self._notify("on_outcome", self.on_outcome, call, outcome)

    def _choose_park(self, round_: CallRound) -> Park | bool:
        """Return what a call does when it waits for a person. In a resumed turn it may have been
        asked about before, under an earlier policy.
        """
        if not round_.goes_on:
            return self.park
        return GoingOn(raise_pending if self.park else wait_for_answer)

    async def _notify(
        self,
        name: str,
        listener: Callable[..., Any] | None,
        subject: ToolCallRequest | ModelCall,
        *more: Any,
    ) -> None:
        """Call a listener. Its failure is logged; the turn goes on."""
        try:
            heard = None if listener is None else listener(subject, *more)
            if isawaitable(heard):
                await await_until(heard, self._listener_time_s())
        except (*USER_ERRORS, asyncio.CancelledError) as exc:
            if isinstance(exc, asyncio.CancelledError) and is_being_cancelled():
                raise
            log(CALLBACK_FAILED, "%s failed for %s", name, _name_subject(subject), exc_info=exc)

    def _listener_time_s(self) -> float:
        return max(
            self.budget.tool_time_s(self.budget.timeout_s),
            min(MIN_LISTENER_S, self.budget.remaining_s() / 2),
        )

    def _add_notes(self, calls: Sequence[ToolCallRequest], outcomes: Iterable[ToolOutcome]) -> None:
        """Tell the model about changed calls, loops, blocked tools, late results, and the budget
        that is left.
        """
        outcomes = list(outcomes)
        ran = [outcome for outcome in outcomes if not isinstance(outcome, ToolDenied)]
        for outcome in ran:
            for change in outcome.turn.changes:
                self._tell_model(f"{outcome.tool_name}: {change}")
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
            self._tell_model(f"{level:.0%} of this turn's budget is used: {self._describe_rest()}")

    def _describe_rest(self) -> str:
        """Return a sentence about how much of the budget is left."""
        left = self.budget.snapshot()
        parts = [
            pluralize(left["steps_max"] - left["steps_used"], "step"),
            pluralize(self._count_remaining_calls(), "tool call"),
        ]
        if self.budget.max_tokens is not None:
            parts.append(pluralize(max(0, left["tokens_max"] - left["tokens_used"]), "token"))
        if self.budget.max_cost is not None:
            share = max(0.0, 1 - left["cost_used"] / left["cost_max"]) if left["cost_max"] else 0.0
            parts.append(f"{share:.0%} of the money")
        return f"{', '.join(parts)} and {left['remaining_s']:.0f} s are left."

    def _tell_model(self, text: str) -> None:
        """Add a note for the model, which leaves the messages at the end of the turn."""
        note = make_system_message(text)
        self.notes.append(note)
        self.messages.append(note)

    def _count_remaining_calls(self) -> int:
        left = self.budget.snapshot()
        return int(left["tool_calls_max"] - left["tool_calls_used"])


def _name_subject(subject: ToolCallRequest | ModelCall) -> str:
    """Return words for a log, without anything that may be secret."""
    if isinstance(subject, ModelCall):
        return f"call {subject.step} of the model"
    return f"the call {subject.id} of {subject.name}"


def _explain_block(outcome: ToolOutcome) -> str:
    """Return why a tool is blocked, and what the model can do instead."""
    lost = f"{outcome.tool_name} is not called again in this turn"
    if not getattr(outcome, "effect_unknown", False):
        return f"{lost}: it failed in a way that a retry cannot fix. Go on without it."
    verify = getattr(outcome, "verify_tool", None)
    what = "If you cannot find out, say so in your answer."
    if verify:
        what = f"Look with {verify}, and answer with what you find."
    return f"{lost}, because it may have taken effect. {what}"


class _OutOfTime(TimeoutError):
    """The turn's time for tools was over before the model answered."""


class _ModelFailed(Exception):
    """The model raised this, or returned something that is not a reply."""
