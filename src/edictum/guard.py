"""Edictum, the guard: every tool call goes through it and ends as exactly one outcome."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, assert_never, overload

from edictum._audit_event import AuditAction
from edictum._checks import (
    check_callables,
    check_principal,
    read_approval_backend,
    read_clock,
    read_contracts,
    read_environment,
    read_hooks,
    read_hung_threads,
    read_limits,
    read_local_events,
    read_redaction,
    read_sinks,
    read_tools,
)
from edictum._dry_run import DryRun
from edictum._factories import (
    MAX_LOGGED,
    Base,
    BundleOptions,
    GuardOptions,
    Layer,
    build_policy,
    find_template,
    list_templates,
    open_approval_store,
    open_session_store,
    open_sinks,
    parse_layers,
    read_files,
    start_telemetry,
    take_language,
    to_layers,
    warn_about_amounts,
    warn_about_approvers,
)
from edictum._logs import (
    POLICY_FILE_MISSING,
    POLICY_NOT_RELOADED,
    POLICY_RELOADED,
    POLICY_WARNING,
    LogEvent,
    log,
)
from edictum._merging import merge_policies
from edictum._options import (
    CHARGE_OPTIONS,
    FLOW_OPTIONS,
    NO_FIELDS,
    RUN_OPTIONS,
    batch_item,
    read_charges,
    read_fields,
    read_run,
    read_stated_options,
    warn_about_unread_amounts,
)
from edictum._previews import Preview
from edictum._probes import (
    CHECK_TIMEOUT_S,
    ClockWatch,
    check_parts,
    open_ledger,
    read_stats,
)
from edictum._watching import Watch
from edictum.approval.parking import can_park
from edictum.approval.port import ApprovalBackend
from edictum.approval.queue import ApprovalQueue
from edictum.audit._ports import PORTS
from edictum.audit._query import GuardAudit
from edictum.audit.composite import CompositeSink
from edictum.audit.memory import DEFAULT_EVENTS, CollectingAuditSink
from edictum.audit.sinks import AuditSink
from edictum.compat.guard import OlderGuard
from edictum.contracts._language import Language
from edictum.contracts._report import CompositionReport, TemplateInfo
from edictum.contracts._tool_check import ToolFindings, check_contracts, check_tool
from edictum.core._records import maker, record, replace
from edictum.core.call import Principal, ToolCall, new_call, snapshot
from edictum.core.charges import NO_CHARGES
from edictum.core.config import LATE_ANSWER_S, FailureFlag, Flow, LifecycleConfig
from edictum.core.contract import Contract, Mode, check_mode
from edictum.core.decision import USER_ERRORS
from edictum.core.effects import Engine, RunIn, RunTool, run_tool
from edictum.core.events import Context, policy_event
from edictum.core.hooks import HookRegistration
from edictum.core.lifecycle import lifecycle
from edictum.core.lifecycle.questions import list_askers
from edictum.core.lifecycle.turn import lifecycle_in_turn
from edictum.core.limits import NO_LIMITS, OperationLimits, tightest
from edictum.core.parameters import refer_to
from edictum.core.parking import ApprovalPending, raise_pending
from edictum.core.policy import Plan, Policy
from edictum.core.redaction import RedactionPolicy
from edictum.core.secret_scan import secret_detector
from edictum.core.tool_entry import ToolEntry
from edictum.core.turn import OpenedCall, TurnPort
from edictum.errors import EdictumConfigError, EdictumDenied, EdictumInputError, EdictumToolError
from edictum.evaluation import NOT_GIVEN, EvaluationResult
from edictum.execution.engines import as_run_in
from edictum.execution.forks import call_in_child, protect
from edictum.execution.portal import PORTAL
from edictum.execution.process_identity import THIS_PROCESS
from edictum.execution.threads import MAX_ABANDONED
from edictum.execution.waiting import await_until
from edictum.explanation import Explanation
from edictum.health import Health
from edictum.outcomes import (
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    denial_for_model,
    failure_for_model,
)
from edictum.runtime.clock import SYSTEM, Clock
from edictum.runtime.drive import (
    CallDriver,
    Suspended,
    advance,
    advance_to_tool,
    advance_to_tool_sync,
    resume,
    resume_sync,
)
from edictum.runtime.figures import Figures
from edictum.runtime.handlers import EffectHandlers
from edictum.runtime.observation import OBSERVATION, Observer
from edictum.runtime.ticket import Ticket
from edictum.runtime.wiring import Wiring
from edictum.sessions._four_verb_ledger import StorageBackend
from edictum.sessions.ledger import Ledger
from edictum.sessions.session import Session
from edictum.stats import Stats
from edictum.success import SuccessCheck, error_key

if TYPE_CHECKING:
    from edictum.call_options import CallOptions, EvaluateOptions
    from edictum.contracts._bundle import Bundle

try:
    from edictum.runtime.fast_path import FastPath, make_fast_path
except ImportError:  # calls only take longer without it
    make_fast_path = None  # type: ignore[assignment]  # checked before use

NOTE_S = 5.0  # for the audit to take an event about the policy


@record
class State:
    """What decides calls, replaced as one: a call sees all of one policy, never parts of two."""

    policy: Policy
    wiring: Wiring
    config: LifecycleConfig
    handlers: EffectHandlers
    fast_path: FastPath | None
    base: Base
    language: Language
    observer: Observer | None


def _describe_calls(mode: Mode, policy: Policy, redaction: RedactionPolicy) -> Context:
    """Return what all events of a guard in this process have in common."""
    return Context(mode, policy.version, redaction, policy.digest, THIS_PROCESS.origin)


def _make_state(
    policy: Policy, wiring: Wiring, config: LifecycleConfig, base: Base, language: Language
) -> State:
    context = _describe_calls(config.context.mode, policy, config.context.redaction)
    config = replace(config, context=context)
    handlers = EffectHandlers(wiring)
    fast_path, observer = None, OBSERVATION.observer
    if make_fast_path is not None and observer is None:
        fast_path = make_fast_path(config, handlers)
    return State(policy, wiring, config, handlers, fast_path, base, language, observer)


@record
class PendingCall:
    """A call as it was asked for."""

    tool_name: Any
    args: Any
    fn: Callable[..., Any] | None
    failure_flag: FailureFlag | None
    options: CallOptions
    parameters: Any = None  # their source, if it is not the function


pending_call = maker(PendingCall)


class Edictum(OlderGuard):
    """The gate between an agent and its tools.

    ``run`` returns the tool's value or raises; ``dispatch`` returns the typed outcome and does not
    raise for the fault of a tool, a contract or a backend. ``run_sync`` and ``dispatch_sync`` work
    in any thread, inside or outside a running event loop.
    """

    def __init__(
        self,
        *,
        contracts: Sequence[Contract] | None = None,
        hooks: Sequence[HookRegistration] | None = None,
        limits: OperationLimits | Sequence[OperationLimits] | None = None,
        tools: Mapping[str, Any] | None = None,
        success_check: SuccessCheck | None = None,
        on_deny: Callable[..., Any] | None = None,
        on_allow: Callable[..., Any] | None = None,
        principal: Principal | None = None,
        principal_resolver: Callable[..., Any] | None = None,
        approval_backend: ApprovalBackend | str | None = None,
        audit_sink: AuditSink | str | Sequence[AuditSink | str] | None = None,
        redaction: RedactionPolicy | None = None,
        mode: Mode = "enforce",
        environment: str = "production",
        backend: Ledger | StorageBackend | str | None = None,
        policy_version: str | None = None,
        clock: Clock = SYSTEM,
        execution: Any = None,
        local_events: int = DEFAULT_EVENTS,
        max_hung_threads: int = MAX_ABANDONED,
        require_store: bool = False,
    ) -> None:
        check_mode(mode, "Edictum")
        functions: dict[str, Any] = {
            "success_check": success_check,
            "on_deny": on_deny,
            "on_allow": on_allow,
            "principal_resolver": principal_resolver,
        }
        check_callables(**functions)
        check_principal(principal)
        base = Base(
            read_contracts(contracts), read_hooks(hooks), *read_limits(limits), read_tools(tools)
        )
        wiring = Wiring(
            ledger=open_ledger(backend, required=require_store),
            local_sink=read_local_events(local_events),
            sinks=read_sinks(audit_sink),
            clock=read_clock(clock),
            environment=read_environment(environment),
            approval_backend=read_approval_backend(approval_backend),
            principal=principal,
            run_in=as_run_in(execution),
            abandoned=read_hung_threads(max_hung_threads),
        )
        policy = base.policy(policy_version)
        config = LifecycleConfig(
            _describe_calls(mode, policy, read_redaction(redaction)),
            **functions,
            lease_s=getattr(wiring.ledger, "default_lease_s", None),
            late_answer_s=getattr(wiring.approval_backend, "late_answer_s", LATE_ANSWER_S),
            records_starts=hasattr(wiring.approval_backend, "use"),
        )
        self._install(policy, wiring, config, base, Language())
        warn_about_approvers(wiring.approval_backend, policy, None)

    def _install(
        self,
        policy: Policy,
        wiring: Wiring,
        config: LifecycleConfig,
        base: Base,
        language: Language,
    ) -> None:
        self._lock = threading.Lock()
        protect(self)
        self._watches: list[Watch] = []
        self._clock_watch = ClockWatch()
        self._logged: set[str] = set()  # warnings about tools
        self._session_id = wiring.clock.new_id()
        self._next_index = itertools.count().__next__
        config = replace(config, digest_in_force=self._digest_in_force)
        self._state = _make_state(policy, wiring, config, base, language)
        call_in_child(self._renew_state)
        OBSERVATION.add_guard(self)
        if OBSERVATION.observer is not self._state.observer:  # it was set meanwhile
            self._renew_state()
        if wiring.sinks:
            secret_detector()  # made now, as the first event would hold its event loop for it

    def _renew_state(self) -> None:
        """Take over what has changed in the process: the observer of calls, and in a forked child
        the origin of events. Events from before the fork keep the parent's.
        """
        with self._lock:
            state = self._state
            self._state = _make_state(
                state.policy, state.wiring, state.config, state.base, state.language
            )

    def _digest_in_force(self) -> str:
        return self._state.policy.digest()

    @overload
    @classmethod
    def from_yaml(
        cls,
        *paths: str | os.PathLike[str],
        return_report: Literal[False] = False,
        **options: Unpack[BundleOptions],
    ) -> Self: ...
    @overload
    @classmethod
    def from_yaml(
        cls,
        *paths: str | os.PathLike[str],
        return_report: Literal[True],
        **options: Unpack[BundleOptions],
    ) -> tuple[Self, CompositionReport]: ...
    @classmethod
    def from_yaml(
        cls,
        *paths: str | os.PathLike[str],
        return_report: bool = False,
        **options: Unpack[BundleOptions],
    ) -> Self | tuple[Self, CompositionReport]:
        """Make a guard from a bundle, or several as layers: a contract replaces one of its name.

        ``mode`` replaces the default mode of the bundle ("observe" makes everything only observe).
        ``custom_operators`` are functions (field, value) -> bool, ``custom_selectors`` functions
        from the call to a dict. With ``return_report`` returns ``(guard, CompositionReport)``. The
        other options are those of the constructor. All of them stay across ``reload``.
        """
        language, rest = take_language(options)
        guard, report = cls._from_texts(read_files(paths, language.max_bytes), language, rest)
        return (guard, report) if return_report else guard

    @classmethod
    def from_yaml_string(cls, *layers: str | bytes, **options: Unpack[BundleOptions]) -> Self:
        """Make a guard from YAML as text or bytes, as ``from_yaml`` does."""
        language, rest = take_language(options)
        return cls._from_texts(to_layers(layers, language.max_bytes), language, rest)[0]

    @classmethod
    def from_template(
        cls,
        name: str,
        *,
        template_dirs: Sequence[str | os.PathLike[str]] | None = None,
        **options: Unpack[BundleOptions],
    ) -> Self:
        """Make a guard from a template in ``template_dirs``, or else a built-in one."""
        return cls.from_yaml(find_template(name, template_dirs), **options)

    @staticmethod
    def list_templates(
        template_dirs: Sequence[str | os.PathLike[str]] | None = None,
    ) -> list[TemplateInfo]:
        """Return the templates that ``from_template`` finds."""
        return list_templates(template_dirs)

    @classmethod
    def _from_texts(
        cls, texts: Sequence[Layer], language: Language, options: GuardOptions
    ) -> tuple[Self, CompositionReport]:
        bundle, report = parse_layers(texts, language)
        if options.get("audit_sink") is None:
            options["audit_sink"] = open_sinks(bundle)
        if options.get("backend") is None:
            options["backend"] = open_session_store(bundle)
        if options.get("approval_backend") is None:
            options["approval_backend"] = open_approval_store(bundle)
        options.setdefault("require_store", bundle.session.get("require_store", False))
        start_telemetry(bundle)
        guard = cls(**options, mode=language.mode or "enforce")
        guard._adopt(bundle, language, report)
        return guard, report

    def _adopt(self, bundle: Bundle, language: Language, report: CompositionReport) -> None:
        """Put a bundle in force, beside what the guard was given in Python."""
        with self._lock:
            state = self._state
            context = state.config.context
            redaction = context.redaction.with_bundle(bundle.secrets)
            policy = build_policy(state.base, bundle, language, redaction)
            context = _describe_calls(context.mode, policy, redaction)
            config = replace(state.config, context=context)
            self._state = _make_state(policy, state.wiring, config, state.base, language)
        warn_about_amounts(state.base, bundle, report)
        warn_about_approvers(state.wiring.approval_backend, policy, report)

    def _lift_default_limits(self) -> bool:
        """Drop the default limits; return whether no limit is left because of that.

        For servers, which live longer than any one conversation. It lasts across ``reload``.
        """
        with self._lock:
            state = self._state
            if state.base.limits is not None:
                return False
            policy = state.policy.without_default_limits()
            base = replace(state.base, limits=NO_LIMITS)
            self._state = _make_state(policy, state.wiring, state.config, base, state.language)
            return policy.limits == NO_LIMITS and not policy.session_limits

    async def reload(self, *layers: str | bytes | os.PathLike[str]) -> CompositionReport:
        """Replace the bundle in force: YAML as text or bytes, or Path objects; several are layers.

        A call sees all of the old policy or all of the new one. What was given in Python stays, as
        do custom operators, selectors and the mode. Raises EdictumConfigError when anything is
        wrong with the new bundle; the old policy stays in force then. A person's answer to a
        request made under the old policy does not count under a new one that says something else.
        """
        try:
            report = self._reload(layers)
        except Exception as exc:
            await self._note_policy(AuditAction.POLICY_NOT_RELOADED, POLICY_NOT_RELOADED, exc)
            raise
        await self._note_policy(AuditAction.POLICY_RELOADED, POLICY_RELOADED)
        return report

    def _reload_files(self, paths: Sequence[Path]) -> CompositionReport:
        """Do as ``reload`` does, in a thread."""
        try:
            report = self._reload(paths)
        except Exception as exc:
            note = self._note_policy(AuditAction.POLICY_NOT_RELOADED, POLICY_NOT_RELOADED, exc)
            PORTAL.run(note)
            raise
        PORTAL.run(self._note_policy(AuditAction.POLICY_RELOADED, POLICY_RELOADED))
        return report

    def _note_missing(self, error: EdictumConfigError) -> None:
        action = AuditAction.POLICY_FILE_MISSING
        PORTAL.run(self._note_policy(action, POLICY_FILE_MISSING, error))

    async def _note_policy(
        self, action: AuditAction, event: LogEvent, problem: Exception | None = None
    ) -> None:
        """Log and record which policy is in force, and why.

        An event that the audit does not take is in the log; the policy is in force anyway.
        """
        state = self._state
        version, digest = state.policy.version, state.policy.digest()
        text = f"The policy {version} is in force."
        if problem is not None:
            text = f"The policy {version} stays in force: {problem}"
        log(event, "%s", text, policy_version=version, policy_digest=digest)
        wiring, context = state.wiring, state.config.context
        with suppress(*USER_ERRORS):
            now = wiring.clock.now()
            made = policy_event(context, action, now, text, wiring.environment)
            if (written := state.handlers.record_event(made)) is not None:
                await await_until(written, NOTE_S)

    def _reload(self, layers: Sequence[str | bytes | os.PathLike[str]]) -> CompositionReport:
        language = self._state.language
        if self._state.base.merged_bundles:
            raise EdictumConfigError(
                "This guard was merged from others with bundles of their own, which a reload would"
                " drop.",
                hint="Reload those guards, and merge them again with from_multiple().",
            )
        bundle, report = parse_layers(to_layers(layers, language.max_bytes), language)
        self._adopt(bundle, language, report)
        return report

    def watch(
        self,
        *paths: str | os.PathLike[str],
        interval_s: float = 1.0,
        on_reload: Callable[[CompositionReport], Any] | None = None,
        on_error: Callable[[Exception], Any] | None = None,
    ) -> Watch:
        """Reload whenever a file changes, until the Watch is stopped or the guard is closed.

        Files that are not what is in force, because they have changed since, are loaded at once.
        A file that has become invalid, or is gone, leaves the old policy in force; the error is
        logged, recorded in the audit and handed to ``on_error``. A forked child watches as well.
        Raises EdictumConfigError when no bundle was loaded: the files would not be in force yet.
        """
        files, missing = [Path(path) for path in paths], self._note_missing
        if not self._state.policy.has_bundle:
            hint = "Load it: Edictum.from_yaml(path), or await guard.reload(Path(path))."
            raise EdictumConfigError("watch(): this guard has no bundle in force.", hint=hint)
        in_force = self._state.policy.version
        watch = Watch(files, self._reload_files, interval_s, on_reload, on_error, missing, in_force)
        self._watches.append(watch)
        return watch

    @classmethod
    def from_multiple(cls, guards: Sequence[Edictum]) -> Edictum:
        """Make a guard with the contracts, hooks and tools of all, and the tightest limits.

        Everything else is the first's. A contract that several guards share is asked once;
        different contracts with one id are all kept. Both cases are logged.
        """
        if not guards:
            raise EdictumConfigError(
                "from_multiple() requires at least one guard.",
                hint="Pass a list of Edictum objects.",
            )
        if strangers := [guard for guard in guards if not isinstance(guard, Edictum)]:
            raise EdictumConfigError(
                f"from_multiple(): {strangers[0]!r} is not a guard.",
                hint="Pass a list of Edictum objects.",
            )
        states = [guard._state for guard in guards]
        policy = merge_policies([state.policy for state in states])
        python = merge_policies([state.base.policy(None) for state in states])
        limits = tightest(
            [states[0].base.limits, *(state.policy.limits for state in states[1:])]
        )  # theirs stay when the first reloads
        kept = states[0].base.merged_bundles or any(_has_bundle(state) for state in states[1:])
        scoped = python.session_limits
        base = Base(python.contracts, python.hooks, limits, scoped, python.tools, kept)
        guard = cls.__new__(cls)
        sink = states[0].wiring.local_sink.make_empty()
        wiring = replace(states[0].wiring, local_sink=sink, figures=Figures())
        guard._install(policy, wiring, states[0].config, base, states[0].language)
        return guard

    # --- Calls ------------------------------------------------------------------------------------

    async def run(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        fn: Callable[..., Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Govern one call and return the tool's value.

        Raises ``EdictumDenied`` when the call was refused (the tool did not run) and
        ``EdictumToolError`` when it failed or ran out of time.

        Options: ``session_id``, ``principal``, ``environment``, ``call_id``, ``parent_call_id``,
        ``metadata``, ``call_index``, ``caller``, ``tool_use_id``, ``timeout_s``, ``run_in``
        ("inline", "thread", "process", or an engine), ``parent_session_id`` (a session, or several
        from the nearest to the root, in which the call counts as well), ``amounts`` (what it is
        expected to use, such as ``{"cost": 0.12}``, or a function of the call that returns it),
        ``actual_amounts`` (a function of the result that returns what it used), ``control_flow``
        (exceptions by which the host defers calls: the call is closed as paused when the approval
        backend raises one, which is then raised again), ``park`` (True: ``ApprovalPending`` is
        raised in place of waiting for a person, if the approval backend is a queue; or a function
        of the open ApprovalRequest that raises one of ``control_flow``).
        """
        end = self._start(pending_call(tool_name, args, fn, None, options))
        try:
            if type(end) is Suspended:
                end = await resume(end)
            return end.value if type(end) is ToolExecutionResult else unwrap(end)
        finally:
            del end  # see ``start_inline``

    def run_sync(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        fn: Callable[..., Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Do as ``run`` does, from synchronous code."""
        end = self._start(pending_call(tool_name, args, fn, None, options))
        try:
            return unwrap(resume_sync(end) if type(end) is Suspended else end)
        finally:
            del end

    async def dispatch(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        fn: Callable[..., Any] | None = None,
        *,
        flag: FailureFlag | None = error_key,
        turn: TurnPort | None = None,
        **options: Unpack[CallOptions],
    ) -> ToolOutcome:
        """Govern one call and return its outcome. Options as for ``run``.

        In the vocabulary of outcomes a dict with ``"error"`` set is a failure, unless a
        ``success_check`` or a success rule decides. A framework that has its own way to say that a
        result is a failure gives it as ``flag``. In a ``turn`` (``edictum.harness``) its gates come
        first, ``args`` may be whatever a model sent, and ``fn`` may be left out when the turn knows
        the tool.
        """
        end = self._start(pending_call(tool_name, args, fn, flag, options), turn)
        try:
            return await resume(end) if type(end) is Suspended else end
        finally:
            del end

    def dispatch_sync(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        fn: Callable[..., Any] | None = None,
        *,
        flag: FailureFlag | None = error_key,
        turn: TurnPort | None = None,
        **options: Unpack[CallOptions],
    ) -> ToolOutcome:
        """Do as ``dispatch`` does, from synchronous code."""
        end = self._start(pending_call(tool_name, args, fn, flag, options), turn)
        try:
            return resume_sync(end) if type(end) is Suspended else end
        finally:
            del end

    async def begin(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        *,
        flag: FailureFlag | None = None,
        **options: Unpack[CallOptions],
    ) -> Ticket:
        """Open a ticket: for hosts that run the tool between a hook before and one after it."""
        call, driver = self._open(PendingCall(tool_name, args, None, flag, options))
        return _open_ticket(call, driver, await advance_to_tool(driver, driver.advance()))

    def begin_sync(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        *,
        flag: FailureFlag | None = None,
        **options: Unpack[CallOptions],
    ) -> Ticket:
        """Do as ``begin`` does, from synchronous code."""
        call, driver = self._open(PendingCall(tool_name, args, None, flag, options))
        return _open_ticket(call, driver, advance_to_tool_sync(driver, driver.advance()))

    def _open(self, pending: PendingCall) -> tuple[ToolCall, CallDriver]:
        state = self._state
        plan = state.policy.plan(pending.tool_name)
        run = self._make_run(state, plan, pending, self._session_id)
        flow = _open_flow(self, state, run, plan, pending)
        return run.call, CallDriver(flow, state.handlers, runs_tool=False)

    def _start(self, pending: PendingCall, turn: TurnPort | None = None) -> ToolOutcome | Suspended:
        """Start a call, and take it as far as it goes without waiting."""
        state = self._state
        if turn is not None:
            return self._start_in_turn(state, pending, turn)
        if not callable(pending.fn):
            pending = _take_tool_callable(pending)
        plan = state.policy.plan(pending.tool_name)
        run = self._make_run(state, plan, pending, self._session_id)
        options, fast_path = pending.options, state.fast_path
        if fast_path is None or (options and not FLOW_OPTIONS.isdisjoint(options)):
            return advance(_open_flow(self, state, run, plan, pending), state.handlers)
        return fast_path.govern(run, plan, pending.failure_flag) or advance(
            _open_flow(self, state, run, plan, pending), state.handlers
        )

    def _start_in_turn(
        self, state: State, pending: PendingCall, turn: TurnPort
    ) -> ToolOutcome | Suspended:
        opened = turn.open(pending.tool_name, pending.args, pending.fn, state.policy)
        plan, flag = opened.plan, pending.failure_flag
        flag = opened.failure_flag if flag is error_key else flag
        options, parameters = pending.options, opened.parameters
        pending = PendingCall(plan.tool, opened.args, opened.body, flag, options, parameters)
        session_id = opened.session_id or self._session_id
        try:
            run = self._make_run(state, plan, pending, session_id)
        except EdictumInputError as exc:  # the arguments are a model's: the gates answer
            opened.reject_arguments(str(exc))
            pending = replace(pending, args=opened.args)
            run = self._make_run(state, plan, pending, session_id)
        return advance(_open_flow(self, state, run, plan, pending, opened), state.handlers, opened)

    def _make_run(
        self,
        state: State,
        plan: Plan,
        pending: PendingCall,
        session_id: str,
        *,
        is_dry: bool = False,
    ) -> RunTool:
        """Snapshot the call as it will be judged, counted, run and recorded.

        Options are read before the call gets its number, so that a refused one leaves no gap.
        """
        wiring, entry, clock = state.wiring, plan.entry, state.wiring.clock
        options = pending.options
        timeout_s, run_in = entry.timeout_s, entry.run_in or wiring.run_in
        fields, charges = NO_FIELDS, entry.charges
        if options:
            fields = read_fields(options)
            if not RUN_OPTIONS.isdisjoint(options):
                timeout_s, run_in = read_run(options, timeout_s, run_in)
        args, key = snapshot(plan.tool, pending.args), "" if is_dry else clock.new_id()
        call = new_call(
            plan.tool,
            args,
            key,
            session_id,
            0 if is_dry or "call_index" in fields else self._next_index(),
            side_effect=entry.side_effect,
            idempotent=entry.idempotent,
            environment=wiring.environment,
            started_at=clock.now(),
            principal=wiring.principal,
            parameters=pending.parameters or refer_to(pending.fn),
        )
        if options:
            for name, value in fields.items():
                object.__setattr__(call, name, value)  # before the call is seen anywhere
            if not CHARGE_OPTIONS.isdisjoint(options):
                charges = read_charges(call, options, charges)
        if charges is not NO_CHARGES:
            charges = warn_about_unread_amounts(plan, charges)
        return run_tool(call, key, pending.fn, timeout_s, run_in, "principal" in options, charges)

    # --- Looking without calling ------------------------------------------------------------------

    def evaluate(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        *,
        output: Any = NOT_GIVEN,
        **options: Unpack[EvaluateOptions],
    ) -> EvaluationResult:
        """Return what would be decided about this call, without making it.

        Nothing is counted, recorded or run. The session is looked at, its limits and contracts, as
        ``run`` would: without ``session_id`` it is the guard's own. With ``output``, even None, the
        postconditions are asked as well. The other options mean what they mean to ``run``.
        """
        run, dry_run = self._dry_run("evaluate", tool_name, args, options)
        return dry_run.evaluate(run, output)

    def explain(
        self,
        tool_name: str,
        args: Mapping[str, Any],
        *,
        output: Any = NOT_GIVEN,
        **options: Unpack[EvaluateOptions],
    ) -> Explanation:
        """Evaluate the call, and show the conditions of each contract as a tree.

        Every leaf shows the value that it read, and whether it held.
        """
        run, dry_run = self._dry_run("explain", tool_name, args, options)
        return dry_run.explain(run, output)

    def _dry_run(
        self, what: str, tool_name: str, args: Mapping[str, Any], options: EvaluateOptions
    ) -> tuple[RunTool, DryRun]:
        """Return the call as it would be made, without an id or a number, and its dry run."""
        stated: Any = read_stated_options(what, options) if options else options
        state = self._state
        plan = state.policy.plan(tool_name)
        pending = pending_call(tool_name, args, None, None, stated)
        run = self._make_run(state, plan, pending, self._session_id, is_dry=True)
        return run, DryRun(plan, state.config, state.wiring.ledger)

    def evaluate_batch(self, calls: Sequence[Mapping[str, Any]]) -> list[EvaluationResult]:
        """Evaluate dicts of "tool", "args" and the keywords of ``evaluate``."""
        return [self.evaluate(**batch_item(number, call)) for number, call in enumerate(calls)]

    def check_tools(self, tools: Any) -> list[str]:
        """Check the contracts of the bundle against the tools of an agent.

        ``tools`` are functions and ToolSpecs, or a dict of names to functions, ToolSpecs, pydantic
        models or JSON Schemas. Raises EdictumConfigError for a contract that names one of them and
        reads an argument that it does not have, or compares it with what it cannot be. Returns
        warnings about what may be meant: tools that are not there, globs, unknown defaults.
        """
        findings = check_contracts(self._state.policy, tools)
        self._log_once(findings.logged)
        findings.raise_errors()
        return findings.warnings

    def _check_tool(self, name: str, parameters: Any) -> ToolFindings:
        """Check the contracts against one tool, and log each finding once."""
        findings = check_tool(self._state.policy, name, parameters)
        self._log_once(findings.logged)
        return findings

    def _log_once(self, warnings: Sequence[str]) -> None:
        for warning in warnings:
            if warning not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(warning)
                log(POLICY_WARNING, "%s", warning)

    # --- Configuration ----------------------------------------------------------------------------

    def set_principal(self, principal: Principal | None) -> None:
        """Make calls on behalf of this principal from now on."""
        check_principal(principal)
        with self._lock:
            state = self._state
            wiring = replace(state.wiring, principal=principal)
            self._state = _make_state(
                state.policy, wiring, state.config, state.base, state.language
            )

    def _describe_tool(self, name: str, entry: ToolEntry) -> None:
        """Set the entry of a tool from now on and across ``reload``."""
        with self._lock:
            state = self._state
            base = replace(state.base, tools={**state.base.tools, name: entry})
            policy = state.policy.with_tool(name, entry)
            self._state = _make_state(policy, state.wiring, state.config, base, state.language)

    def session(self, session_id: str | None = None) -> Session:
        """Return the counters of a session; by default the guard's own."""
        return Session(
            session_id if session_id is not None else self._session_id, self._state.wiring.ledger
        )

    def scope(self, scope: str, value: object = None) -> Session:
        """Return the counters that limits with this scope have for a value.

        ``guard.scope("principal", "alice")``, ``guard.scope("args.account_id", 17)``; the scope
        "global" has no value, and a principal without a user_id is under "service".
        """
        return Session.of_scope(scope, value, self._state.wiring.ledger)

    def new_session_id(self) -> str:
        """Return an id for a new session."""
        return self._state.wiring.clock.new_id()

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def local_sink(self) -> CollectingAuditSink:
        """The in-memory sink that every guard has."""
        return self._state.wiring.local_sink

    @property
    def audit(self) -> GuardAudit:
        """The events that the guard's sinks keep, to be queried:
        ``guard.audit.query(tool="refund")``.
        """
        wiring = self._state.wiring
        return GuardAudit((*wiring.sinks, self.local_sink), self._state.policy, wiring.ledger)

    @property
    def audit_sink(self) -> AuditSink:
        """The in-memory sink, or a CompositeSink of it and the guard's others."""
        sinks = self._state.wiring.sinks
        return CompositeSink([self.local_sink, *sinks]) if sinks else self.local_sink

    @property
    def policy(self) -> Policy:
        return self._state.policy

    @property
    def policy_version(self) -> str | None:
        """The SHA-256 of the bundle's bytes, or what the guard was given."""
        return self._state.policy.version

    @property
    def policy_digest(self) -> str:
        """A digest of what the policy says. Comments, stores and sinks are not in it."""
        return self._state.policy.digest()

    @property
    def limits(self) -> OperationLimits:
        return self._state.policy.limits

    @property
    def mode(self) -> Mode:
        """The guard's own mode, or that of its bundle."""
        state = self._state
        return state.config.mode if state.policy.mode == "enforce" else state.policy.mode

    @property
    def environment(self) -> str:
        return self._state.wiring.environment

    @property
    def redaction(self) -> RedactionPolicy:
        return self._state.config.context.redaction

    @property
    def backend(self) -> Ledger:
        return self._state.wiring.ledger

    @property
    def execution(self) -> RunIn | Engine:
        """Where tools run that do not state it themselves."""
        return self._state.wiring.run_in

    @property
    def principal(self) -> Principal | None:
        return self._state.wiring.principal

    @property
    def _names_principal(self) -> bool:
        """Whether the guard has a principal for calls that do not state one."""
        state = self._state
        return state.wiring.principal is not None or state.config.principal_resolver is not None

    @property
    def _asks_people(self) -> bool:
        return self._state.wiring.approval_backend is not None

    @property
    def _keeps_questions(self) -> bool:
        """Whether a call that waits for a person can be made again in another process."""
        return can_park(self._state.wiring.approval_backend)

    def _can_ask(self, tool_name: str) -> bool:
        """Return whether a person may be asked about some call of a tool."""
        return bool(list_askers(self._state.policy.plan(tool_name)))

    def _can_allow(self, tool_name: str) -> bool:
        """Return whether some call of a tool may be allowed."""
        state = self._state
        return state.policy.can_allow(tool_name, state.config.mode)

    @property
    def success_check(self) -> SuccessCheck | None:
        return self._state.config.success_check

    # --- Operation --------------------------------------------------------------------------------

    async def check(self, *, timeout_s: float = CHECK_TIMEOUT_S) -> Health:
        """Ask the ledger, the sinks, the approval backend and the engines whether they can do their
        work now, each for ``timeout_s`` at most; look at the policy and the clock.

        Nothing is counted or recorded. ``result.ok`` is for a health route; ``result.parts`` say
        what is wrong, for operators.
        """
        state = self._state
        watches, clock = self._watches, self._clock_watch
        return await check_parts(state.policy, state.wiring, watches, clock, timeout_s)

    def check_sync(self, *, timeout_s: float = CHECK_TIMEOUT_S) -> Health:
        """Do as ``check`` does, from synchronous code."""
        return PORTAL.run(self.check(timeout_s=timeout_s))

    def stats(self) -> Stats:
        """Return what was counted since the guard was made: calls by tool, decision and outcome,
        latencies, and what is left behind. Asks no server, so it may be called at any time.
        """
        state = self._state
        return read_stats(state.policy, state.wiring)

    @property
    def approvals(self) -> ApprovalQueue:
        """The queue in which calls of this guard ask for approval: what is pending, and answers.

        Raises EdictumConfigError when the guard asks elsewhere.
        """
        backend = self._state.wiring.approval_backend
        if isinstance(backend, ApprovalQueue):
            return backend
        raise EdictumConfigError(
            "This guard has no approval queue.",
            hint='Use Edictum(approval_backend="sqlite:///approvals.db"), or approvals: {store:'
            " ...} in the bundle.",
        )

    async def close(self) -> None:
        """Close sinks, ledger, approval backend and engine; failures are raised together at the
        end.
        """
        failures: list[Exception] = []
        for watch in self._watches:
            watch.stop()
        wiring = self._state.wiring
        ports = (wiring.ledger, wiring.approval_backend, wiring.run_in)
        for part in (*map(PORTS.find, wiring.sinks), *ports):
            close = getattr(part, "close", None)
            try:
                closed = close() if close is not None else None
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


def _take_tool_callable(pending: PendingCall) -> PendingCall:
    """Return the call with the function from its older keyword, or raise if there is no
    function.
    """
    options: dict[str, Any] = dict(pending.options)
    fn = pending.fn if pending.fn is not None else options.pop("tool_callable", None)
    if not callable(fn):
        raise EdictumInputError(
            f"The tool {pending.tool_name!r} is {fn!r}, not a function.",
            hint="Pass the function that does the work.",
        )
    return replace(pending, fn=fn, options=options)


def _open_ticket(call: ToolCall, driver: CallDriver, step: RunTool | ToolOutcome) -> Ticket:
    if not isinstance(step, RunTool):
        driver.end(step)
    return Ticket(call, driver, step)


def _has_bundle(state: State) -> bool:
    """Return whether a guard has more than what it was given in Python."""
    policy, base = state.policy, state.base
    more = len(policy.contracts) > len(base.contracts) or len(policy.tools) > len(base.tools)
    return (
        more
        or base.merged_bundles
        or len(policy.session_limits) > len(base.scoped_limits)
        or bool(policy.success_rules or policy.unlisted)
    )


def unwrap(outcome: ToolOutcome) -> Any:
    """Return the value of an outcome, or raise what ``run`` raises for it."""
    match outcome:
        case ToolExecutionResult():
            return outcome.value
        case ToolDenied():
            raise EdictumDenied(
                denial_for_model(outcome),
                outcome.decision_source,
                outcome.decision_name,
                outcome,
            )
        case ToolFailure():
            raise EdictumToolError(
                failure_for_model(outcome), outcome, outcome.value
            ) from outcome.exception
        case ToolTimeout():
            raise EdictumToolError(
                f"Tool '{outcome.tool_name}' timed out after {outcome.elapsed_ms} ms.", outcome
            )
        case ToolArtifactReference():
            return outcome
        case _:
            assert_never(outcome)


def _with_park(config: LifecycleConfig, park: Any) -> LifecycleConfig:
    if park is True:
        signals = (*config.control_flow, ApprovalPending)
        return replace(config, park=raise_pending, control_flow=signals)
    check_callables(park=park)
    return replace(config, park=park)


def _open_flow(
    guard: Edictum,
    state: State,
    run: RunTool,
    plan: Plan,
    pending: PendingCall,
    turn: OpenedCall | None = None,
) -> Flow:
    """Return the lifecycle of a call, in which options of the call replace settings of the
    guard.
    """
    config, options, flag = state.config, pending.options, pending.failure_flag
    if plan.entry.preview is not None:
        preview = Preview(guard, plan, turn, config.context.redaction)
        config = replace(config, preview=preview)
    if "principal_resolver" in options:
        check_callables(principal_resolver=options["principal_resolver"])
        config = replace(config, principal_resolver=options["principal_resolver"])
    if "control_flow" in options:
        config = replace(config, control_flow=options["control_flow"])
    if options.get("park"):
        config = _with_park(config, options["park"])
    if turn is None:
        flow = lifecycle(run, plan, config, flag)
    else:
        flow = lifecycle_in_turn(run, plan, config, flag, turn)
    if state.observer is None:
        return flow
    description = "" if turn is None else turn.description
    return state.observer.observe(flow, run, config.context, description)
