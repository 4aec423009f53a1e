"""Turn: what a turn adds to the calls that are made in it by ``guard.dispatch(..., turn=turn)``.

Its gates come before those of the guard, in this order:

    deadline     the turn is over, or too little time is left
    blocked      the tool failed in a way that a retry cannot help, or the web is off
    validation   the tool is known and the arguments fit its schema
    duplicate    the same call has been made, or is being made
    budget       there are tool calls left in this turn

Where the guard has before-hooks for a tool, or a principal resolver, they are asked after the
validation. Arguments that they rewrite are validated as well, and the last two gates judge those:
the same call on behalf of another principal is another call.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from edictum.core._records import replace
from edictum.core.call import ToolCall, check_tool_name
from edictum.core.decision import Failed
from edictum.core.effects import Ran, Renew, RunTool
from edictum.core.events import Approval
from edictum.core.freeze import EMPTY, freeze_args
from edictum.core.lifecycle.admission import LATE_GRANT
from edictum.core.limits import Grant, Limit, Metric, Reservation, Settlement
from edictum.core.policy import Policy
from edictum.core.redaction import shorten
from edictum.core.turn import (
    DuplicateInFlight,
    Gate,
    GateAnswer,
    Gates,
    OncePerWindow,
    Oversized,
    Refusal,
    Replay,
    UncheckedReplay,
)
from edictum.core.values import canonical, digest, dumps, identity, show
from edictum.errors import EdictumConfigError, EdictumInputError
from edictum.execution.body import NOT_AWAITABLE, needs_await
from edictum.harness._argument_checks import check_arguments
from edictum.harness.arg_validator import (
    MAX_REPAIR_ATTEMPTS,
    Invalid,
    Malformed,
    ToolArgValidator,
    parse_arguments,
)
from edictum.harness.artifact_reader import READER
from edictum.harness.artifact_store import MAX_SUMMARY_CHARS
from edictum.harness.replay_control import (
    DUPLICATE_TEXT,
    Done,
    InFlight,
    New,
    copy_result,
    mark_as_replay,
)
from edictum.harness.tool_registry import (
    KnownTool,
    ToolRegistry,
    resolve_tool,
    resolve_unknown_tool,
    sendable,
    to_registry,
)
from edictum.harness.tool_spec import OnDuplicate, ToolSpec
from edictum.harness.turn_budget import (
    CURRENT_TOKEN,
    DEFAULT_CAP_S,
    DeadlineExceeded,
    DeadlineToken,
    TurnBudget,
    pluralize,
)
from edictum.harness.turn_state import ToolTraceEntry, TurnState
from edictum.outcomes import (
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    TurnFacts,
    outcome_blocks_tool,
)

NOT_A_NAME = "invalid_tool_name"
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 5.0
LEASE_MARGIN_S = 60.0
MOMENT_S = 0.1  # what a port gets even when the turn is over, to count and record a call
DEFAULT_VALIDATOR = ToolArgValidator()


class Turn:
    """One turn of an agent: its state, its tools, and how its calls are bounded."""

    last_outcome: ToolOutcome | None = None  # of its last call that ended
    keep_start: Callable[[], Any] | None = None  # of calls that must not be made again
    _only_gate: tuple[str, Gate] | None = None  # which denies every call

    def __init__(
        self,
        state: TurnState | None = None,
        tools: Any = (),
        *,
        budget: TurnBudget | None = None,
        artifact_store: Any = None,
        validator: ToolArgValidator | None = None,
        on_duplicate: OnDuplicate = "deny",
        tool_timeout_cap_s: float = DEFAULT_CAP_S,
        web_mode: str = "on",
    ) -> None:
        self.state = state if state is not None else TurnState(budget=budget)
        self.budget = budget if budget is not None else self.state.budget
        self.tools: ToolRegistry = tools if isinstance(tools, ToolRegistry) else to_registry(tools)
        self.artifact_store = artifact_store
        self.validator = validator if validator is not None else DEFAULT_VALIDATOR
        self.on_duplicate = on_duplicate
        self.cap_s = tool_timeout_cap_s
        self.web_mode = web_mode
        self._handed: dict[str, KnownTool] = {}  # tools that are not registered
        if tool_timeout_cap_s is not DEFAULT_CAP_S:
            check_arguments(tool_timeout_cap_s=tool_timeout_cap_s)
        if web_mode not in ("on", "off"):
            hint = 'Use "on" or "off".'
            raise EdictumConfigError(f"web_mode is {show(web_mode)}.", hint=hint)
        if on_duplicate not in ("deny", "replay"):
            raise EdictumConfigError(
                f"on_duplicate is {on_duplicate!r}.", hint="Use 'deny' or 'replay'."
            )

    @property
    def session_id(self) -> str:
        """The session of its calls; an empty text leaves the choice to their caller."""
        return self.state.session_id

    def open(
        self, tool_name: str, arguments: Any, function: Callable[..., Any] | None, policy: Policy
    ) -> TurnCall:
        """Open a call of this turn with whatever a model sent; the gates say what is wrong."""
        call = self._open(tool_name, arguments, function, policy)
        if self._only_gate is not None:
            call.gates = call.gates_before_hooks = (self._only_gate,)
        return call

    def deny_calls(self, gate: str, refusal: Refusal) -> None:
        """Deny every call of this turn from now on, on behalf of a gate."""
        self._only_gate = (gate, lambda _turn, _call: refusal)

    def deny_caller(self, problem: str) -> None:
        """Deny every call, because its caller could not be determined."""
        self.deny_calls("caller", Refusal("policy_error", problem, policy_error=True))

    def _open(
        self, tool_name: str, arguments: Any, function: Callable[..., Any] | None, policy: Policy
    ) -> TurnCall:
        known = self.tools.resolve(policy, tool_name)
        if known is None and function is not None:
            known = self._resolve_function(tool_name, function, policy)
        if known is not None:
            return TurnCall(self, known, arguments, function)
        try:
            check_tool_name(tool_name)
            unknown = resolve_unknown_tool(tool_name, policy)
        except EdictumInputError:  # replaced by a name that an audit can record
            unknown = resolve_unknown_tool(NOT_A_NAME, policy)
        call = TurnCall(self, unknown, arguments, function)
        call._name = tool_name
        return call

    def _resolve_function(
        self, tool_name: str, function: Callable[..., Any], policy: Policy
    ) -> KnownTool | None:
        """Return a tool for a function that came with the call; its effects are taken for the worst
        case.
        """
        known = self._handed.get(tool_name) if isinstance(tool_name, str) else None
        if known is None or known.policy is not policy or known.spec.function is not function:
            try:
                known = self._handed[tool_name] = resolve_tool(
                    ToolSpec(name=tool_name, function=function), policy
                )
            except EdictumInputError:  # the name comes from a model
                return None
        return known


class TurnCall:
    """One call, from its gates to its outcome. Implements ``edictum.core.turn.CallInTurn``."""

    gates: Gates = ()
    gates_before_hooks: Gates = ()
    _malformed: str | None
    _call: ToolCall  # as the last gates have seen it
    _begun: New | None
    _entry: ToolTraceEntry | None
    _token: DeadlineToken | None
    # Rarely set: class-level defaults, so most calls allocate nothing for these.
    _name: Any = None  # of an unknown tool, as it was sent
    _first: New | None = None  # the same call, made before
    _last: ToolOutcome | None = None  # of the attempt before
    _hooked = False  # a hook, or a person who approved the call, has changed the arguments
    _outer: DeadlineToken | None = None
    _closing_at: float | None = None
    _approvals: dict[str, Approval] | None = None
    reserved: Settlement | None = None

    def __init__(
        self, turn: Turn, known: KnownTool, arguments: Any, function: Callable[..., Any] | None
    ) -> None:
        self._malformed = self._begun = self._token = self._entry = None
        self._repairs: tuple[str, ...] = ()
        self.attempts = 0
        self._turn = turn
        self._known = known
        self._spec = known.spec  # None for an unknown tool, which the validation gate refuses
        self.session_id = turn.state.session_id
        self.plan = known.plan
        self.tool_name = known.plan.tool
        self.failure_flag = known.judge
        is_own = function is None or function is known.function or function is known.tool
        self.body = known.body if is_own else function
        self.parameters = known.parameters if is_own else None
        read = arguments if type(arguments) is dict else parse_arguments(arguments)
        if isinstance(read, Malformed):
            self._malformed = read.details
            read = {"arguments": shorten(show(arguments), 500)}
        elif known.schema is not None:
            read = known.schema.fill_defaults(read)
        self.args: Mapping[str, Any] = read

    @property
    def description(self) -> str:
        return "" if self._spec is None else self._spec.description

    @property
    def prompt(self) -> str | None:
        return self._turn.state.prompt

    @property
    def keep_start(self) -> Callable[[], Any] | None:
        return None if self._spec.safe_to_repeat else self._turn.keep_start

    def find_tool(self, name: str) -> KnownTool | None:
        return self._turn.tools.resolve(self._known.policy, name)

    def reject_arguments(self, why: str) -> None:
        self._malformed, self.args = why, EMPTY

    # --- The gates --------------------------------------------------------------------------------

    def _check_deadline(self, call: ToolCall) -> GateAnswer:
        turn = self._turn
        if not turn.state.accepting:
            return Refusal("cancelled", "The turn is over.")
        return self._refuse_late(turn.budget.tool_time_s(turn.cap_s))

    def _refuse_late(self, left_s: float) -> Refusal | None:
        """Return a refusal when the time left is not enough for the tool."""
        useful_s = 0.0 if self._spec is None else self._spec.min_useful_s
        if left_s > 0 and left_s >= useful_s:
            return None
        left = f"{max(0.0, left_s):.1f} s are left for tools in this turn"
        needed = f"; {self.tool_name} needs {useful_s:g} s" if useful_s else ""
        return Refusal("deadline", f"{left}{needed}.")

    def _check_blocked_tools(self, call: ToolCall) -> GateAnswer:
        if self.tool_name in self._turn.state.blocked_tool_names:
            why = "failed earlier in this turn in a way that a retry cannot fix"
            return Refusal("blocked", f"{self.tool_name} {why}.")
        spec = self._spec
        if self._turn.web_mode == "off" and spec is not None and spec.metadata.get("web"):
            return Refusal("web_off", "The web is switched off in this turn.")
        return None

    def _check_arguments(self, call: ToolCall) -> GateAnswer:
        if self._spec is None or self.body is None:
            return Refusal("unknown_tool", self.describe_unknown_tool())
        if self._malformed is not None:
            return Refusal("malformed_arguments", self._malformed)
        known, validator = self._known, self._turn.validator
        schema, is_own = known.schema, type(validator) is not ToolArgValidator
        try:
            fits = validator.fits(self._spec, call.args) if is_own else known.fits(call.args)
        except ValueError:  # a value that JSON does not know
            fits = False
        if fits and (schema is None or schema.fill_defaults(call.args) is call.args):
            return None
        checked = validator.validate(self._spec, call.args)
        if isinstance(checked, Invalid):
            return self._refuse_arguments(checked)
        self._repairs = tuple(dict.fromkeys((*self._repairs, *checked.repairs)))
        return replace(call, args=freeze_args(checked.arguments))

    def describe_unknown_tool(self) -> str:
        names = self._turn.tools.names()
        close = get_close_matches(str(self._name), names, n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        known = f"Tools there are: {shorten(', '.join(names), 500)}."
        there = known if names else "There are no tools."
        return f"There is no tool {shorten(show(self._name), 80)}.{guess} {there}"

    def _refuse_arguments(self, invalid: Invalid) -> Refusal:
        if self._hooked:  # the model has done nothing wrong
            problem = "A hook, or the person who approved the call, has changed its arguments so"
            problem += " that they do not fit"
            told = f"{problem}: {invalid.details}"
            return Refusal("validation", told, for_operators=invalid.for_operators)
        count = self._turn.state.increment_repair(self.tool_name, invalid.signature)
        details = invalid.details
        if count >= MAX_REPAIR_ATTEMPTS:
            details += f" The same mistake was made {count} times; do not call it like this again."
        return Refusal("validation", details, for_operators=invalid.for_operators)

    def _check_duplicate(self, call: ToolCall) -> GateAnswer:
        self._call = call
        spec = self._spec
        if spec.window_s is not None:
            return self._reserve_window(call, spec)
        if not spec.is_cacheable:
            return None
        begun = self._turn.state.replay.begin(spec, call.args, call.principal)
        if isinstance(begun, New):
            self._begun = begun
            return None
        self._first = begun.first
        if isinstance(begun, InFlight):
            left_s = self._turn.budget.tool_time_s(self._turn.cap_s)
            if left_s > 0:
                return DuplicateInFlight(begun.outcome, left_s)
            return Refusal("deadline", "The same call is still running.")
        outcome, look = begun.outcome, getattr(self._turn.artifact_store, "get_ref", None)
        if type(outcome) is ToolArtifactReference and look is not None:
            return UncheckedReplay(begun, look, (outcome.artifact_id, call.run_id))
        return self.confirm_replay(begun)

    def confirm_replay(self, done: Done) -> GateAnswer:
        if self._replays() and done.outcome is not None:
            return Replay(self.replay(done.outcome))
        return Refusal("duplicate", DUPLICATE_TEXT)

    def _replays(self) -> bool:
        return (self._spec.on_duplicate or self._turn.on_duplicate) == "replay"

    def forget_replay(self, done: Done) -> None:
        self._turn.state.replay.forget(done)

    def replay(self, outcome: ToolOutcome) -> ToolOutcome:
        approved = getattr(self._first, "approvals", None)
        self._approvals = dict(approved) if approved else None
        outcome = mark_as_replay(outcome, self._spec)
        if isinstance(outcome, ToolDenied):
            return outcome
        outcome = replace(outcome, turn=replace(outcome.turn, repairs=self._repairs))
        if hasattr(outcome, "was_coerced"):
            return replace(outcome, was_coerced=bool(self._repairs))
        return outcome

    def _reserve_window(self, call: ToolCall, spec: ToolSpec) -> OncePerWindow:
        """Ask the ledger, which outlives this process, to reserve the only execution in the
        window.
        """
        same = digest(spec.name, canonical(call.principal), canonical(spec.identity_of(call.args)))
        metric, window_s = Metric.EXECUTIONS, spec.window_s
        limit = Limit(name="once", metric=metric, maximum=1, tool=same, window_s=window_s)
        what = (f"{call.run_id}/once", uuid.uuid4().hex, (same,), (limit,))
        self.reserved = Settlement(*what, "release")
        lease_s = self._lease_s()
        return OncePerWindow(
            Reservation(*what, count_attempt=False, lease_s=lease_s, expiry_counts=True)
        )

    def _lease_s(self) -> float:
        """Return a lease that is longer than all attempts can take."""
        return (self._spec.max_retries + 1) * (self._turn.cap_s + MAX_BACKOFF_S) + LEASE_MARGIN_S

    def extend_reservation(self, seconds: float) -> Renew | None:
        held = self.reserved
        if held is None:
            return None
        return Renew(held.session_id, held.call_id, seconds + self._lease_s())

    def read_grant(self, grant: Grant) -> Refusal | None:
        if grant.is_late:  # given back with the denial of this call
            return Refusal("policy_error", LATE_GRANT, policy_error=True)
        if grant.granted:
            return None
        self.reserved = None
        when = f"within the last {self._spec.window_s:g} s"
        return Refusal("duplicate", f"The same call was made {when}, or is being made.")

    def _check_budget(self, call: ToolCall) -> GateAnswer:
        if self._turn.budget.claim_tool_call():
            return None
        most = pluralize(self._turn.budget.max_tool_calls, "tool call")
        text = f"The limit of {most} in this turn is reached. Answer with what you have."
        return Refusal("budget", text)

    def gates_after_hooks(self, call: ToolCall, rewritten: bool) -> tuple[Gates, Settlement | None]:
        self._hooked = rewritten
        if getattr(self, "_call", None) is None:
            return GATES[HOOKS_AT - rewritten :], None
        before = self._call
        if identity(call.args) == identity(before.args) and call.principal == before.principal:
            return (), None
        return GATES_FOR_ARGUMENTS, self._give_up()

    def _give_up(self) -> Settlement | None:
        """End the replay entry of the earlier attempt, because the hooks have turned it into
        another call. Return the settlement of its reservation, if it has one.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            self._turn.state.replay.finish(begun, self._spec, self._call.args, None)
        held, self.reserved = self.reserved, None
        if held is None or self._last is None:
            return None
        return self.settlement(held, self._last)

    # --- While it is decided and run --------------------------------------------------------------

    def pause_clock(self) -> None:
        self._turn.budget.pause()

    def resume_clock(self) -> None:
        self._turn.budget.resume()

    @property
    def approvals(self) -> dict[str, Approval]:
        if self._approvals is None:
            self._approvals = {}
            if self._begun is not None:  # a replay of the answer needs no other approval
                self._begun.approvals = self._approvals
        return self._approvals

    def time_left_s(self, *, port: bool = False) -> float:
        if self._entry is not None and self._entry.status != "running":
            left_s = self._closing_time_s(port)
        else:
            left_s = self._turn.budget.tool_time_s(self._turn.cap_s)
        return max(left_s, MOMENT_S if port else 0.0)

    def _closing_time_s(self, port: bool) -> float:
        """Return the time left after the body has ended. User-supplied code gets half of it."""
        budget = self._turn.budget
        now = budget.now()
        if self._closing_at is None:
            self._closing_at = now + max(
                budget.tool_time_s(self._turn.cap_s), (budget.deadline - now) / 2, 2 * MOMENT_S
            )
        return (self._closing_at - now) / (1 if port else 2)

    def start(self, run: RunTool) -> RunTool | Refusal:
        """Check the clock once more, and set the tool's absolute deadline."""
        turn, spec = self._turn, self._spec
        state, budget = turn.state, turn.budget
        left_s = budget.tool_time_s(turn.cap_s)
        if run.timeout_s is not None and left_s > run.timeout_s:
            left_s = run.timeout_s
        if not state.accepting:
            return Refusal("cancelled", "The turn is over.")
        if left_s <= spec.min_useful_s and (late := self._refuse_late(left_s)) is not None:
            return late
        self.attempts += 1
        self._entry = state.set_trace_running(run.key, self.plan.tool, run.call.call_id)
        if not spec.is_read:
            state.replay.record_write(spec, run.call.args)
        if spec.isolation == "inline" and run.timeout_s is None and run.run_in == "inline":
            return run  # a deadline could not be noticed before it ends
        return self._set_deadline(run, budget.timer() + left_s, left_s)

    def _set_deadline(self, run: RunTool, deadline_s: float, left_s: float) -> RunTool:
        """Return the run with its deadline, which the tool can read too."""
        self._token = token = DeadlineToken(deadline_s, self._turn.budget.timer)
        self._outer = CURRENT_TOKEN.get()
        CURRENT_TOKEN.set(token)
        body: Any = run.body
        if run.run_in == "process":
            body = sendable(body)
        if self._spec.token_parameter is not None:
            body = partial(body, **{self._spec.token_parameter: token})
        if run.run_in in ("inline", "thread"):  # where it is not killed, and can end late
            body = _report_end(body, self._turn.state, run.key, self._spec, run.call.args)
        return RunTool(run.call, run.key, body, left_s, run.run_in, run.identified)

    def end_body(self, ran: Ran) -> Ran:
        entry, token, spec = self._entry, self._token, self._spec
        assert entry is not None
        if token is None:
            if not ran.cancelled:
                entry.status = "completed"
        else:
            CURRENT_TOKEN.set(self._outer)
            ran = self._settle_trace(ran, token, entry)
        if not spec.is_read:
            self._turn.state.replay.record_write(spec, self._call.args)
        return ran

    def _settle_trace(self, ran: Ran, token: DeadlineToken, entry: ToolTraceEntry) -> Ran:
        """Decide between completed and timed out: whichever is reported first, here or by the
        body.
        """
        state = self._turn.state
        if ran.deadline_s is None:
            if ran.cancelled or ran.body_may_be_running:  # the caller is gone
                token.cancel()
                state.cancel_trace(entry.trace_id)
                return ran
            if not (isinstance(ran.error, DeadlineExceeded) and token.is_expired()):
                if entry.status != "completed":  # else the body has reported it
                    state.complete_trace(entry.trace_id)
                return ran
        token.cancel()
        if not state.mark_trace_timed_out(entry.trace_id) and ran.error is None:
            return Ran(entry.result, None, ran.elapsed_s)  # it ended in time after all
        return replace(ran, value=None, error=None, deadline_s=token.deadline_s)

    # --- Outcomes ---------------------------------------------------------------------------------

    def shape(self, outcome: ToolOutcome) -> ToolOutcome | Oversized:
        if self.attempts > 1 or self._repairs:
            outcome = self._with_facts(outcome)
        if type(outcome) is ToolExecutionResult:
            most = self._spec.max_output_chars
            if _surely_fits(outcome.value, most) or len(content := dumps(outcome.output)) <= most:
                return outcome
            store = self._turn.artifact_store if self._spec.store_output else None
            return Oversized(content, store)
        non_retryable = self._spec.non_retryable
        if isinstance(outcome, ToolFailure) and isinstance(outcome.exception, non_retryable):
            return replace(outcome, retryable=False)
        return outcome

    def _with_facts(self, outcome: ToolOutcome) -> ToolOutcome:
        facts = TurnFacts(attempts=self.attempts, repairs=self._repairs)
        if isinstance(outcome, ToolExecutionResult):
            return replace(outcome, turn=facts, was_coerced=bool(self._repairs))
        return outcome if isinstance(outcome, ToolDenied) else replace(outcome, turn=facts)

    def take_reference(
        self, outcome: ToolOutcome, oversized: Oversized, reference: Any
    ) -> ToolOutcome:
        assert isinstance(outcome, ToolExecutionResult)
        artifact_id, summary, size = (
            getattr(reference, name, None) for name in ("artifact_id", "summary", "size_bytes")
        )
        if not isinstance(artifact_id, str) or not isinstance(size, int):
            return self._truncate(outcome, oversized.content, reference)
        text = summary if isinstance(summary, str) else "" if summary is None else show(summary)
        return ToolArtifactReference(
            outcome.call_id,
            outcome.tool_name,
            artifact_id,
            shorten(text, MAX_SUMMARY_CHARS),
            size,
            elapsed_ms=outcome.elapsed_ms,
            was_coerced=outcome.was_coerced,
            findings=outcome.findings,
            notes=outcome.notes,
            turn=outcome.turn,
            reader=READER if READER in self._turn.tools else None,
        )

    def _truncate(self, outcome: ToolExecutionResult, content: str, reference: Any) -> ToolOutcome:
        """Keep both ends of an output that could not be stored."""
        part = self._spec.max_output_chars // 5  # twice, and every character may need a backslash
        output = {
            "truncated": True,
            "total_chars": len(content),
            "head": content[:part],
            "tail": content[-part:],
        }
        notes = outcome.notes
        if self._turn.artifact_store is not None and self._spec.store_output:
            failed = isinstance(reference, Failed)
            why = type(reference.error).__name__ if failed else "the store gave no reference"
            notes = (*notes, f"The output could not be stored, so it was cut: {why}")
        return replace(outcome, output=output, notes=notes)

    def retry_in(self, outcome: ToolOutcome) -> float | None:
        """Return the back-off with jitter, or None when another attempt would be pointless."""
        if not isinstance(outcome, (ToolTimeout, ToolFailure)) or not self._can_retry(outcome):
            return None
        backoff_s: float = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self.attempts - 1))
        pause_s = backoff_s * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not a secret
        left_s = self._turn.budget.tool_time_s(self._turn.cap_s) - pause_s
        if self._refuse_late(left_s) is not None:
            return None
        self._entry, self._closing_at, self._last = None, None, outcome
        return pause_s

    def _can_retry(self, outcome: ToolTimeout | ToolFailure) -> bool:
        if not outcome.retryable or not 0 < self.attempts <= self._spec.max_retries:
            return False
        if isinstance(outcome, ToolFailure) and outcome.policy_error:
            return False
        if isinstance(outcome, ToolFailure) and outcome.success_source == "cancelled":
            return False
        # a model may decide to repeat what may have had an effect; the turn does not
        return not outcome.effect_unknown or self._call.idempotent

    def settlement(self, held: Settlement, outcome: ToolOutcome) -> Settlement:
        """Release what was denied or certainly failed; count anything else as made."""
        failed = isinstance(outcome, ToolFailure) and not outcome.effect_unknown
        if failed or isinstance(outcome, ToolDenied):
            return held
        return replace(held, result="success")

    def note_end(self, outcome: ToolOutcome | None) -> None:
        state = self._turn.state
        self._turn.last_outcome = outcome
        if (begun := self._begun) is not None:
            kept = copy_result(outcome) if self._replays() else outcome
            state.replay.finish(begun, self._spec, self._call.args, kept)
        if type(outcome) is not ToolExecutionResult:
            self._abandon_body()
            if outcome is None:
                return
            if outcome_blocks_tool(outcome):
                state.block((self.tool_name,))
        state.record_tool_result(outcome)

    def _abandon_body(self) -> None:
        """Cancel a body that has not ended: it was never started, was deferred, or was thrown
        away.
        """
        entry, token, state = self._entry, self._token, self._turn.state
        if entry is None or not state.cancel_trace(entry.trace_id):
            return
        if token is not None:
            token.cancel()
            if CURRENT_TOKEN.get() is token:
                CURRENT_TOKEN.set(self._outer)
        if not self._spec.is_read:
            state.replay.record_write(self._spec, self._call.args)


GATES: tuple[tuple[str, Gate], ...] = (
    ("deadline", TurnCall._check_deadline),
    ("blocked", TurnCall._check_blocked_tools),
    ("validation", TurnCall._check_arguments),
    ("duplicate", TurnCall._check_duplicate),
    ("budget", TurnCall._check_budget),
)
HOOKS_AT = 3  # where the before-hooks run
GATES_FOR_ARGUMENTS = GATES[2:4]
TurnCall.gates, TurnCall.gates_before_hooks = GATES, GATES[:HOOKS_AT]


def _report_end(
    body: Callable[..., Any],
    state: TurnState,
    trace_id: str,
    spec: ToolSpec,
    args: Mapping[str, Any],
) -> Callable[..., Any]:
    """Return the body with a wrapper that reports its end to the turn, which decides there whether
    it was in time.
    """

    def record_write(*, late: bool) -> None:
        if late and not spec.is_read:
            state.replay.record_write(spec, args)

    @contextmanager
    def report_failure() -> Iterator[None]:
        try:
            yield
        except BaseException:
            record_write(late=state.fail_trace(trace_id))
            raise

    async def run_async(**arguments: Any) -> Any:
        with report_failure():
            value = await body(**arguments)
        record_write(late=not state.complete_trace(trace_id, value))
        return value

    def run(**arguments: Any) -> Any:
        with report_failure():
            value = body(**arguments)
        if type(value) in NOT_AWAITABLE or not needs_await(value):
            record_write(late=not state.complete_trace(trace_id, value))
        return value

    return run_async if iscoroutinefunction(body) else run


SMALL = frozenset({bool, float, type(None)})


def _surely_fits(value: Any, limit: int) -> bool:
    """Return whether a result is small enough without serializing it: an escaped character takes at
    most twelve.
    """
    kind = type(value)
    if kind is str:
        return 16 + 12 * len(value) <= limit
    if kind is int:
        return limit >= 36 and -(10**18) < value < 10**18
    return kind in SMALL and limit >= 36
