"""BoundedToolExecutor: one call of a turn in, exactly one outcome out, in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from edictum._callers import CallerOptions, CallerResolver, ResolvedCaller
from edictum.core.limits import OperationLimits
from edictum.core.parking import ApprovalPending, Park
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.guard import Edictum
from edictum.harness._argument_checks import check_arguments, check_tools
from edictum.harness._schemas import compile_schema
from edictum.harness.arg_validator import ToolArgValidator, get_argument_schema
from edictum.harness.tool_registry import ToolRegistry
from edictum.harness.tool_spec import OnDuplicate
from edictum.harness.turn_budget import DEFAULT_CAP_S, TurnBudget
from edictum.harness.turn_call import Turn
from edictum.harness.turn_state import TurnState
from edictum.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A call as a model asked for it. ``arguments`` are an object, or the JSON text of one."""

    id: str
    name: str
    arguments: Any = None


class BoundedToolExecutor:
    """Runs the calls of turns, governed by a guard. It has no state of a turn, so one serves
    parallel calls and parallel turns.

    Without a ``guard`` calls are bounded and recorded, but no contract and no limit judges them.
    """

    def __init__(
        self,
        tools: Any,
        *,
        guard: Edictum | None = None,
        artifact_store: Any = None,
        validator: ToolArgValidator | None = None,
        on_duplicate: OnDuplicate = "deny",
        tool_timeout_cap_s: float = DEFAULT_CAP_S,
        execution: Any = None,
        **caller: Unpack[CallerOptions],
    ) -> None:
        """Accept ``CallerOptions`` too: each a value, or a function of the ToolCallRequest."""
        self.tools: ToolRegistry = check_tools(tools)
        check_arguments(
            guard=guard, artifact_store=artifact_store, tool_timeout_cap_s=tool_timeout_cap_s
        )
        if guard is not None and execution is not None:
            message = "execution is given beside a guard."
            raise EdictumConfigError(message, hint="Give it to the guard: Edictum(execution=...).")
        unlimited = OperationLimits(max_attempts=None, max_tool_calls=None)
        self.guard = Edictum(limits=unlimited, execution=execution) if guard is None else guard
        self.artifact_store = artifact_store
        self._validator = validator
        self._on_duplicate = on_duplicate
        self._cap_s = tool_timeout_cap_s
        self._caller = CallerResolver("BoundedToolExecutor", caller)
        for spec in self.tools:  # before a turn begins: in a turn the tool may have run by then
            try:
                get_argument_schema(spec)
                if spec.returns is not None:
                    compile_schema(spec.returns)
            except EdictumConfigError as exc:
                raise EdictumConfigError(f"tool {spec.name!r}: {exc}") from exc
        self.guard.check_tools(self.tools)

    def turn(
        self,
        state: TurnState,
        *,
        budget: TurnBudget | None = None,
        tool_timeout_cap_s: float | None = None,
        web_mode: str = "on",
    ) -> Turn:
        """Return the turn of this state; ``tool_timeout_cap_s=None``: the executor's own cap."""
        return Turn(
            state,
            self.tools,
            budget=budget,
            artifact_store=self.artifact_store,
            validator=self._validator,
            on_duplicate=self._on_duplicate,
            tool_timeout_cap_s=self._cap_s if tool_timeout_cap_s is None else tool_timeout_cap_s,
            web_mode=web_mode,
        )

    def execute(self, call: ToolCallRequest, state: TurnState, **options: Any) -> ToolOutcome:
        """Run one call; never raises for the tool's fault. Options: ``budget``,
        ``tool_timeout_cap_s``, ``web_mode``.
        """
        turn = self.turn(state, **options)
        caller = (
            PORTAL.run(self._resolve_caller(call, turn))
            if self._caller.has_functions
            else self._caller.resolve(call)
        )
        about = self._describe(call, turn, caller)
        return self.guard.dispatch_sync(call.name, call.arguments, turn=turn, **about)

    async def aexecute(
        self, call: ToolCallRequest, state: TurnState, **options: Any
    ) -> ToolOutcome:
        """Run one call as ``execute`` does, for asynchronous callers."""
        return await self.aexecute_in(call, self.turn(state, **options))

    async def aexecute_in(
        self, call: ToolCallRequest, turn: Turn, *, park: Park | bool = False
    ) -> ToolOutcome:
        """Run one call in a turn that ``turn`` has returned. With ``park`` a call that must wait
        for a person raises ApprovalPending, or does what the function says.
        """
        about = self._describe(call, turn, await self._resolve_caller(call, turn))
        if park:
            about |= {"park": park, "control_flow": (ApprovalPending,)}
        return await self.guard.dispatch(call.name, call.arguments, turn=turn, **about)

    async def _resolve_caller(self, call: ToolCallRequest, turn: Turn) -> ResolvedCaller:
        """Return the caller of a call; user-supplied functions get the time of a tool, and no
        more.
        """
        return await self._caller.aresolve(call, turn.budget.per_tool_remaining_s(turn.cap_s))

    def _describe(
        self, call: ToolCallRequest, turn: Turn, caller: ResolvedCaller
    ) -> dict[str, Any]:
        """Return the options of a call. If its caller cannot be determined, the turn denies it."""
        known = turn.session_id or caller.options.get("session_id") or self.guard.session_id
        caller.choose_session(known)
        if caller.problem:
            turn.deny_caller(caller.problem)
        return {"call_id": call.id, **caller.options}
