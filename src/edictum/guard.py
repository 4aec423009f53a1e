"""Edictum, the guard: every tool call goes through it and ends as exactly one outcome."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Literal, Self, assert_never, cast

from edictum.approval.port import ApprovalBackend
from edictum.audit.memory import CollectingAuditSink
from edictum.audit.sinks import AuditSink
from edictum.core._draft import record
from edictum.core.call import Principal, ToolCall, check_session_id, new_call, snapshot
from edictum.core.contract import Contract, Mode, check_mode
from edictum.core.effects import RunTool
from edictum.core.freeze import EMPTY, freeze_args
from edictum.core.hooks import HookRegistration
from edictum.core.lifecycle import Flag, Flow, Terms, lifecycle
from edictum.core.limits import OperationLimits
from edictum.core.policy import Plan, Policy, ToolEntry, merge_entries, tool_entry
from edictum.core.redaction import RedactionPolicy
from edictum.dry_run import dry_run
from edictum.errors import EdictumConfigError, EdictumDenied, EdictumInputError, EdictumToolError
from edictum.evaluation import EvaluationResult
from edictum.outcomes import ToolArtifactReference, ToolDenied, ToolExecutionResult, ToolFailure, ToolOutcome, ToolTimeout
from edictum.runtime.clock import SYSTEM, Clock
from edictum.runtime.drive import Walk, drive_async, drive_sync, settle_async, settle_sync
from edictum.runtime.perform import Ports
from edictum.runtime.ticket import Ticket
from edictum.runtime.wiring import Wiring
from edictum.sessions.ledger import Ledger
from edictum.sessions.opening import as_ledger
from edictum.sessions.session import Session
from edictum.sessions.storage import StorageBackend
from edictum.success import SuccessCheck, error_key

logger = logging.getLogger("edictum")


@record
class State:
    """What decides calls, swapped as one: a call sees all of one policy, never parts of two."""

    policy: Policy
    wiring: Wiring
    terms: Terms
    ports: Ports


def _state(policy: Policy, wiring: Wiring) -> State:
    return State(policy, wiring, wiring.terms(policy.version), Ports(wiring))


class Edictum:
    """The gate between an agent and its tools.

    ``run`` gives the tool's value or raises; ``dispatch`` gives the typed outcome and does not raise for the fault of a tool, a
    contract or a backend. Both have a synchronous twin that works in any thread, inside or outside a running event loop.
    """

    def __init__(
        self,
        *,
        contracts: Sequence[Contract] | None = None,
        hooks: Sequence[HookRegistration] | None = None,
        limits: OperationLimits | None = None,
        tools: Mapping[str, Any] | None = None,
        success_check: SuccessCheck | None = None,
        on_deny: Callable[..., Any] | None = None,
        on_allow: Callable[..., Any] | None = None,
        principal: Principal | None = None,
        principal_resolver: Callable[..., Any] | None = None,
        approval_backend: ApprovalBackend | None = None,
        audit_sink: AuditSink | Sequence[AuditSink] | None = None,
        redaction: RedactionPolicy | None = None,
        mode: Mode = "enforce",
        environment: str = "production",
        backend: Ledger | StorageBackend | str | None = None,
        policy_version: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        check_mode(mode, "Edictum")
        _check_callables(success_check=success_check, on_deny=on_deny, on_allow=on_allow, principal_resolver=principal_resolver)
        _check_principal(principal)
        policy = Policy(
            contracts=_contracts(contracts),
            hooks=_hooks(hooks),
            limits=_limits(limits),
            tools=_tools(tools),
            version=policy_version,
        )
        wiring = Wiring(
            ledger=as_ledger(backend),
            local_sink=CollectingAuditSink(),
            sinks=_sinks(audit_sink),
            redaction=redaction if redaction is not None else RedactionPolicy(),
            clock=clock,
            mode=mode,
            environment=environment,
            approval_backend=_approval(approval_backend),
            success_check=success_check,
            principal=principal,
            principal_resolver=principal_resolver,
            on_deny=on_deny,
            on_allow=on_allow,
        )
        self._install(policy, wiring)

    def _install(self, policy: Policy, wiring: Wiring) -> None:
        self._state = _state(policy, wiring)
        self._session_id = wiring.clock.new_id()
        self._next_index = itertools.count().__next__

    @classmethod
    def _assemble(cls, policy: Policy, wiring: Wiring) -> Edictum:
        guard = cls.__new__(cls)
        guard._install(policy, wiring)
        return guard

    @classmethod
    def from_multiple(cls, guards: Sequence[Edictum]) -> Edictum:
        """One guard with the contracts, hooks and tools of all and the tighter of their limits; everything else is the first's.

        A contract that several guards share is asked once. Different contracts with the same id are all kept, because dropping
        one could allow what it denies; both cases are logged.
        """
        if not guards:
            raise EdictumConfigError("from_multiple() requires at least one guard.", hint="Pass a list of Edictum objects.")
        if strangers := [guard for guard in guards if not isinstance(guard, Edictum)]:
            raise EdictumConfigError(f"from_multiple(): {strangers[0]!r} is not a guard.", hint="Pass a list of Edictum objects.")
        first = guards[0]._state
        policies = [guard._state.policy for guard in guards]
        return cls._assemble(_merged(policies), replace(first.wiring, local_sink=CollectingAuditSink()))

    # --- Calls ------------------------------------------------------------------------------------------------------------

    async def run(self, tool_name: str, args: Mapping[str, Any], fn: Callable[..., Any], **options: Any) -> Any:
        """Govern one call and return the tool's value.

        Raises ``EdictumDenied`` when the call was refused (the tool did not run) and ``EdictumToolError`` when it failed or
        ran out of time. Options: ``session_id``, ``principal``, ``environment``, ``call_id``, ``parent_call_id``, ``metadata``,
        ``call_index``, ``caller``, ``tool_use_id``, ``timeout_s``, ``run_in`` ("inline" or "thread").
        """
        flow, ports = self._flow(tool_name, args, fn, None, options)
        return unwrap(await drive_async(flow, ports))

    def run_sync(self, tool_name: str, args: Mapping[str, Any], fn: Callable[..., Any], **options: Any) -> Any:
        """As ``run``, from synchronous code in any thread, inside or outside a running event loop."""
        flow, ports = self._flow(tool_name, args, fn, None, options)
        return unwrap(drive_sync(flow, ports))

    async def dispatch(self, tool_name: str, args: Mapping[str, Any], fn: Callable[..., Any], **options: Any) -> ToolOutcome:
        """Govern one call and return its outcome. Options as for ``run``.

        In the vocabulary of outcomes a dict with ``"error"`` set is a failure, unless a ``success_check`` or a success rule
        decides.
        """
        flow, ports = self._flow(tool_name, args, fn, error_key, options)
        return await drive_async(flow, ports)

    def dispatch_sync(self, tool_name: str, args: Mapping[str, Any], fn: Callable[..., Any], **options: Any) -> ToolOutcome:
        """As ``dispatch``, from synchronous code."""
        flow, ports = self._flow(tool_name, args, fn, error_key, options)
        return drive_sync(flow, ports)

    async def begin(self, tool_name: str, args: Mapping[str, Any], *, flag: Flag | None = None, **options: Any) -> Ticket:
        """Open a ticket: for hosts that run the tool themselves, between a hook before it and a hook after it."""
        call, walk = self._ticket(tool_name, args, flag, options)
        step = await settle_async(walk, walk.step())
        if not isinstance(step, RunTool):
            walk.ended(step)
        return Ticket(call, walk, step)

    def begin_sync(self, tool_name: str, args: Mapping[str, Any], *, flag: Flag | None = None, **options: Any) -> Ticket:
        """As ``begin``, from synchronous code."""
        call, walk = self._ticket(tool_name, args, flag, options)
        step = settle_sync(walk, walk.step())
        if not isinstance(step, RunTool):
            walk.ended(step)
        return Ticket(call, walk, step)

    def _ticket(self, tool_name: str, args: Mapping[str, Any], flag: Flag | None, options: dict[str, Any]) -> tuple[ToolCall, Walk]:
        state = self._state
        plan = state.policy.plan(tool_name)
        run = self._call(state, plan, args, None, options)
        return run.call, Walk(lifecycle(run, plan, state.terms, flag), state.ports)

    def _flow(
        self, tool_name: str, args: Mapping[str, Any], fn: Callable[..., Any], flag: Flag | None, options: dict[str, Any]
    ) -> tuple[Flow, Ports]:
        if not callable(fn):
            raise EdictumInputError(f"The tool {tool_name!r} is {fn!r}, not a function.", hint="Pass the function that does the work.")
        state = self._state
        plan = state.policy.plan(tool_name)
        return lifecycle(self._call(state, plan, args, fn, options), plan, state.terms, flag), state.ports

    def _call(
        self, state: State, plan: Plan, args: Mapping[str, Any], fn: Callable[..., Any] | None, options: dict[str, Any]
    ) -> RunTool:
        """The call as it will be judged, counted, run and recorded: snapshotted here, once."""
        wiring, entry = state.wiring, plan.entry
        key = wiring.clock.new_id()
        call = new_call(
            plan.tool,
            snapshot(plan.tool, args),
            key,
            self._session_id,
            wiring.clock.now(),
            wiring.environment,
            entry.side_effect,
            entry.idempotent,
            wiring.principal,
            self._next_index(),
        )
        run = RunTool(call, key, fn, entry.timeout_s, entry.run_in)
        return _with_options(run, options) if options else run

    # --- Looking without calling --------------------------------------------------------------------------------------------

    def evaluate(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        *,
        principal: Principal | None = None,
        output: Any = None,
        environment: str | None = None,
        session_id: str | None = None,
    ) -> EvaluationResult:
        """What would be decided about this call, without counting, recording or running anything.

        With ``output`` the postconditions are asked as well; with ``session_id`` the session's limits and contracts are.
        """
        state = self._state
        plan = state.policy.plan(tool_name)
        options: dict[str, Any] = {}
        if principal is not None:
            options["principal"] = principal
        if environment is not None:
            options["environment"] = environment
        if session_id is not None:
            options["session_id"] = session_id
        call = self._call(state, plan, args, None, options).call
        return dry_run(call, plan, state.wiring, output=output, with_session=session_id is not None, resolve=principal is None)

    def evaluate_batch(self, calls: Sequence[Mapping[str, Any]]) -> list[EvaluationResult]:
        """``evaluate`` for each of ``{"tool": ..., "args": ..., "principal": {...}, "output": ..., "environment": ...}``."""
        return [self.evaluate(**_batch_item(number, call)) for number, call in enumerate(calls)]

    # --- Configuration ------------------------------------------------------------------------------------------------------

    def set_principal(self, principal: Principal | None) -> None:
        """On whose behalf calls are made from now on."""
        _check_principal(principal)
        state = self._state
        self._state = _state(state.policy, replace(state.wiring, principal=principal))

    def session(self, session_id: str | None = None) -> Session:
        """The counters of a session; by default the guard's own."""
        return Session(session_id if session_id is not None else self._session_id, self._state.wiring.ledger)

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def local_sink(self) -> CollectingAuditSink:
        """The in-memory sink that every guard has."""
        return self._state.wiring.local_sink

    @property
    def audit_sink(self) -> tuple[AuditSink, ...]:
        return cast("tuple[AuditSink, ...]", (self.local_sink, *self._state.wiring.sinks))

    @property
    def policy(self) -> Policy:
        return self._state.policy

    @property
    def policy_version(self) -> str | None:
        return self._state.policy.version

    @property
    def limits(self) -> OperationLimits:
        return self._state.policy.limits

    @property
    def mode(self) -> Mode:
        return self._state.wiring.mode

    @property
    def environment(self) -> str:
        return self._state.wiring.environment

    @property
    def redaction(self) -> RedactionPolicy:
        return self._state.wiring.redaction

    @property
    def backend(self) -> Ledger:
        return self._state.wiring.ledger

    @property
    def principal(self) -> Principal | None:
        return self._state.wiring.principal

    @property
    def success_check(self) -> SuccessCheck | None:
        return self._state.wiring.success_check

    async def close(self) -> None:
        """Close what the guard holds open: sinks and ledger. Every one is tried; failures are raised together."""
        failures: list[Exception] = []
        for part in (*self._state.wiring.sinks, self._state.wiring.ledger):
            try:
                closed = part.close() if hasattr(part, "close") else None
                if isawaitable(closed):
                    await closed
            except Exception as exc:
                failures.append(exc)
        if failures:
            raise ExceptionGroup("closing the guard failed", failures)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def unwrap(outcome: ToolOutcome) -> Any:
    """An outcome as ``run`` gives it: the value, or an exception."""
    match outcome:
        case ToolExecutionResult():
            return outcome.value
        case ToolDenied():
            raise EdictumDenied(outcome.details or outcome.reason, outcome.decision_source, outcome.decision_name, outcome)
        case ToolFailure():
            raise EdictumToolError(outcome.error, outcome, outcome.value) from outcome.exception
        case ToolTimeout():
            raise EdictumToolError(f"Tool '{outcome.tool_name}' timed out after {outcome.elapsed_ms} ms.", outcome)
        case ToolArtifactReference():
            return outcome
        case _:
            assert_never(outcome)


# --- Options of one call ----------------------------------------------------------------------------------------------------

CALL_OPTIONS = frozenset({"principal", "environment", "call_id", "parent_call_id", "call_index", "caller", "tool_use_id"})
RUN_OPTIONS = frozenset({"session_id", "metadata", "timeout_s", "run_in", "timestamp"})


def _with_options(run: RunTool, options: dict[str, Any]) -> RunTool:
    if unknown := set(options) - CALL_OPTIONS - RUN_OPTIONS:
        known = ", ".join(sorted(CALL_OPTIONS | RUN_OPTIONS))
        raise TypeError(f"unknown option {min(unknown)!r}; known options: {known}")
    changes = {name: options[name] for name in CALL_OPTIONS & set(options) if options[name] is not None or name == "principal"}
    if options.get("session_id") is not None:
        check_session_id(options["session_id"])
        changes["run_id"] = options["session_id"]
    if "principal" in changes:
        _check_principal(changes["principal"])
    if options.get("timestamp") is not None:
        changes["started_at"] = options["timestamp"].timestamp()
    changes["metadata"] = freeze_args(options.get("metadata") or EMPTY)
    changed = new_call(**{**_fields(run.call), **{_SHORT.get(name, name): value for name, value in changes.items()}})
    timeout_s = options.get("timeout_s", run.timeout_s)
    run_in = options.get("run_in") or run.run_in
    _check_run(timeout_s, run_in)
    return RunTool(changed, run.key, run.body, timeout_s, run_in, "principal" in changes)


_SHORT = {"run_id": "session_id"}


def _fields(call: ToolCall) -> dict[str, Any]:
    return {_SHORT.get(name, name): getattr(call, name) for name in call.__slots__}


def _check_run(timeout_s: Any, run_in: Any) -> None:
    if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0):
        raise EdictumInputError(f"timeout_s is {timeout_s!r}.", hint="Use seconds, more than 0, or None.")
    if run_in not in ("inline", "thread"):
        raise EdictumInputError(f"run_in is {run_in!r}.", hint="Use 'inline' or 'thread'.")


def _batch_item(number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    if "tool" not in call:
        raise KeyError(f"evaluate_batch: call {number} has no 'tool'")
    principal = call.get("principal")
    if isinstance(principal, Mapping):
        principal = Principal(**principal)
    return {"tool_name": call["tool"], "args": call.get("args") or {}, "principal": principal,
            "output": call.get("output"), "environment": call.get("environment"), "session_id": call.get("session_id")}  # fmt: skip


# --- Checking what a guard is given, before anything is registered -----------------------------------------------------------


def _check_callables(**functions: Any) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise EdictumConfigError(f"Edictum: {name} is {function!r}, not a function.", hint=f"Pass a function as {name}, or None.")


def _check_principal(principal: Any) -> None:
    if principal is not None and not isinstance(principal, Principal):
        raise EdictumConfigError(f"principal is {principal!r}.", hint="Pass a Principal, e.g. Principal(user_id='u1', role='sre').")


def _contracts(contracts: Any) -> tuple[Contract, ...]:
    items = _items("contracts", contracts)
    for number, item in enumerate(items):
        if not isinstance(item, Contract):
            hint = "Decorate the function with @precondition, @postcondition or @session_contract."
            raise EdictumConfigError(f"contracts[{number}] is {item!r}, not a contract.", hint=hint)
    return items


def _hooks(hooks: Any) -> tuple[HookRegistration, ...]:
    items = _items("hooks", hooks)
    for number, item in enumerate(items):
        if not isinstance(item, HookRegistration):
            hint = "Write HookRegistration(phase='before', tool='*', callback=...)."
            raise EdictumConfigError(f"hooks[{number}] is {item!r}, not a HookRegistration.", hint=hint)
    return items


def _items(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise EdictumConfigError(f"{name} is {type(value).__name__}.", hint="Pass a list.")
    return tuple(value)


def _limits(limits: Any) -> OperationLimits:
    if limits is None:
        return OperationLimits()
    if not isinstance(limits, OperationLimits):
        raise EdictumConfigError(f"limits is {limits!r}.", hint="Pass OperationLimits(max_tool_calls=...).")
    return limits


def _tools(tools: Any) -> dict[str, ToolEntry]:
    if tools is None:
        return {}
    if not isinstance(tools, Mapping):
        raise EdictumConfigError(f"tools is {type(tools).__name__}.", hint='Pass a dict such as {"read_file": {"side_effect": "read"}}.')
    return {name: tool_entry(name, settings) for name, settings in tools.items()}


def _sinks(audit_sink: Any) -> tuple[AuditSink, ...]:
    sinks = () if audit_sink is None else (audit_sink,) if hasattr(audit_sink, "emit") else _items("audit_sink", audit_sink)
    for number, sink in enumerate(sinks):
        if not callable(getattr(sink, "emit", None)):
            raise EdictumConfigError(f"audit_sink[{number}] is {sink!r}, which has no emit().", hint="Pass an object with emit(event).")
    return sinks


def _approval(backend: Any) -> ApprovalBackend | None:
    if backend is not None and not isinstance(backend, ApprovalBackend):
        hint = "An approval backend has request_approval(...) and wait_for_decision(...)."
        raise EdictumConfigError(f"approval_backend is {type(backend).__name__}.", hint=hint)
    return backend


# --- Merging ----------------------------------------------------------------------------------------------------------------


def _merged(policies: Sequence[Policy]) -> Policy:
    tools: dict[str, ToolEntry] = {}
    for policy in policies:
        for name, entry in policy.tools.items():
            tools[name] = merge_entries(tools[name], entry) if name in tools else entry
    limits = policies[0].limits
    for policy in policies[1:]:
        limits = limits.tighter(policy.limits)
    return Policy(
        contracts=_merged_contracts(policies),
        hooks=_distinct(hook for policy in policies for hook in policy.hooks),
        limits=limits,
        session_limits=_distinct(limit for policy in policies for limit in policy.session_limits),
        tools=tools,
        success_rules=_distinct(rule for policy in policies for rule in policy.success_rules),
        version=policies[0].version,
    )


def _distinct(items: Any) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept


def _merged_contracts(policies: Sequence[Policy]) -> list[Contract]:
    kept: dict[int, Contract] = {}
    ids: set[str] = set()
    for contract in (contract for policy in policies for contract in policy.contracts):
        if id(contract) in kept:
            logger.warning("from_multiple: contract %r is in several guards; it is asked once", contract.id)
            continue
        if contract.id in ids:
            logger.warning("from_multiple: several contracts are called %r; all of them are kept", contract.id)
        kept[id(contract)] = contract
        ids.add(contract.id)
    return list(kept.values())


RunIn = Literal["inline", "thread"]
