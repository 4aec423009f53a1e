"""The base of all adapters, which translate between a framework and the guard.

Where the adapter can run the tool itself (a middleware with a ``handler``) it uses ``call`` or
``acall``: the tool is the body of one governed call. Where the framework runs the tool between two
hooks it uses ``before`` and ``after``, or ``abefore`` and ``aafter``, and the ticket is kept in a
table under the framework's call id. Either way it gets a ``ToolReply`` to translate.

1. A failure in the gate denies the call. A framework may swallow an exception of its hooks and run
   the tool; a denial is a value, which it cannot swallow.
2. A tool's exception goes where it would go without the adapter: ``ToolReply.error`` is raised. Its
   text is redacted in the exception itself, so that its type stays.
3. Exceptions by which a framework steers (``control_flow``) are not failures. The call is closed as
   paused and releases its slots, and the same exception object is re-raised.
4. The caller is determined for each call: from what the adapter was given, then from what the
   framework itself knows (``identify``), then as a session of the adapter's own. If that fails, the
   call is denied.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard, Unpack, cast

from edictum._callers import CallerOptions, CallerResolver, FromContext, ResolvedCaller
from edictum._logs import ADAPTER_WARNING, POLICY_TOOL_MISMATCH, log
from edictum.adapters._asking_ahead import ASK_ONLY, ask_ahead
from edictum.adapters._canary import CANARY, SelfTest, make_canary_guard
from edictum.adapters._identity import (
    NO_IDENTITY,
    Identity,
    enclose_calls,
    find_outer_caller,
    to_id,
)
from edictum.adapters._large_results import (
    MAX_RESULT_CHARS,
    NO_LIMIT,
    READER_NAME,
    check_limit,
    check_store,
    make_session_reader,
    store_result,
    store_result_async,
)
from edictum.adapters._reply import (
    OnWarn,
    ToolReply,
    deny_broken_gate,
    make_reply,
    replace_text,
    tell_findings,
    tell_findings_async,
)
from edictum.adapters._run_in import RUNS_HERE, check_execution, explain_run_in, find_run_in
from edictum.adapters._versions import check_version
from edictum.core._records import record
from edictum.core.call import Principal, check_session_id
from edictum.core.charges import Actual
from edictum.core.config import FailureFlag
from edictum.core.effects import Declined, Pause
from edictum.core.freeze import copy_object
from edictum.core.parking import Park
from edictum.core.turn import TurnPort
from edictum.core.values import is_same
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum
from edictum.outcomes import ToolExecutionResult, ToolOutcome
from edictum.runtime.ticket import Ticket, TicketTable
from edictum.success import close_lazy_result

if TYPE_CHECKING:
    from edictum.call_options import CallOptions

    class CallDetails(CallOptions, total=False):
        """What an adapter knows about one call besides its name and arguments."""

        flag: FailureFlag | None
        on_warn: OnWarn
        context: Any  # the framework's own object for this run or call
        is_plain: Callable[[], bool]  # whether the value is all that the tool gave


FIXED_ARGS = (
    "A hook rewrote the arguments, and this framework can only run its tool with those of the"
    " model."
)
CHANGED_INSIDE = (
    "Something that runs between the guard and the tool changed the arguments that the guard had"
    " checked."
)
NO_DEFAULT_LIMITS = (
    "the contracts state no limit of calls, so there is none: the default limits of a guard are"
    " those of one conversation, and do not hold for a server."
)
CANNOT_PAUSE = "this framework cannot pause a run for one of its calls"
# The turn of this context; frameworks hand contexts on to what runs their tools.
TURN: ContextVar[TurnPort | None] = ContextVar("edictum_turn", default=None)
# Calls that adapters are around in this context: (adapter, the framework's object, arguments).
AROUND: ContextVar[tuple[tuple[Any, Any, Mapping[str, Any]], ...]] = ContextVar(
    "edictum_around", default=()
)
NUMBERS = count(1)
MAX_CHECKED_TOOLS = 1_000  # a model can invent any number of names
Body = Callable[[dict[str, Any]], Any]
AsyncBody = Callable[[dict[str, Any]], Awaitable[Any]]


class AdapterOptions(CallerOptions, total=False):
    """The keywords of every adapter, for subclasses that pass them on."""

    guard: Edictum
    principal_resolver: Callable[..., Any] | None
    max_result_chars: int | None
    artifact_store: Any
    park: bool


@record
class GuardCall:
    """One call as it is handed to the guard."""

    guard: Edictum
    name: str
    args: Mapping[str, Any]
    options: CallOptions
    flag: FailureFlag | None
    on_warn: OnWarn
    caller: Identity = NO_IDENTITY  # for calls that the tool makes
    problem: str = ""  # why it is not known who is calling
    is_plain: Callable[[], bool] | None = None  # None: always

    def check(self, owner: str) -> None:
        """Raise CannotBeMade if the caller cannot be determined, or if the tool runs elsewhere."""
        if self.problem:
            raise CannotBeMade(self.problem, "caller")
        where = find_run_in(self.guard, self.name, TURN.get())
        if where not in RUNS_HERE:
            raise CannotBeMade(explain_run_in(owner, where, self.name), "run_in")


class CannotBeMade(Exception):
    """The call cannot be made, and is denied on behalf of a gate; the text says why."""

    def __init__(self, problem: str, gate: str) -> None:
        super().__init__(problem)
        self.gate = gate


class Adapter(SelfTest):
    """Base of all adapters."""

    # Distribution -> (first supported version, first that is not).
    requires: ClassVar[Mapping[str, tuple[str, str]]] = {}
    # Whether the hook before a tool can rewrite its arguments. If not, a rewritten call is denied.
    hands_on_args: ClassVar[bool] = False
    # The context that functions get, and another way for a run to name its session: both are said
    # when all calls share one session.
    context_name: ClassVar[str] = "the context of a run"
    session_hint: ClassVar[str] = ""
    # Whether a text may stand in the place of a result: if not, artifact_store is refused.
    can_store: ClassVar[bool] = True
    # Whether it governs a server, which lives longer than any conversation: the default limits of
    # a guard do not hold then, only those that are stated.
    lifts_default_limits: ClassVar[bool] = False

    def __init__(
        self,
        guard: Edictum,
        session_id: str | FromContext | None = None,
        principal: Principal | FromContext | None = None,
        principal_resolver: Callable[..., Any] | None = None,
        *,
        parent_session_id: str | Sequence[str] | FromContext | None = None,
        metadata: Mapping[str, Any] | FromContext | None = None,
        amounts: Mapping[str, float] | FromContext | None = None,
        actual_amounts: Actual | None = None,
        max_result_chars: int | None = MAX_RESULT_CHARS,
        artifact_store: Any = None,
        park: bool = True,
    ) -> None:
        if not isinstance(guard, Edictum):
            raise EdictumConfigError(
                f"{type(self).__name__}: {guard!r} is not a guard.", hint="Pass an Edictum object."
            )
        check_execution(type(self).__name__, guard)
        self.guard = guard
        if self.lifts_default_limits and guard._lift_default_limits():
            log(ADAPTER_WARNING, "%s: %s", type(self).__name__, NO_DEFAULT_LIMITS)
        self._caller = CallerResolver(
            type(self).__name__,
            {
                "session_id": session_id or None,
                "principal": principal,
                "parent_session_id": parent_session_id,
                "metadata": metadata,
                "amounts": amounts,
                "actual_amounts": actual_amounts,
            },
        )
        own = session_id if isinstance(session_id, str) else ""
        self._session_id, self._has_session = own or guard.new_session_id(), bool(own)
        self._principal_resolver, self._has_warned = principal_resolver, False
        self._parks, self._said_waits = park, False
        if type(self).make_park is Adapter.make_park:
            self.say_waits(CANNOT_PAUSE)
        self._limit = check_limit(type(self).__name__, max_result_chars)
        self._store = check_store(type(self).__name__, artifact_store, self.can_store)
        self._tickets = TicketTable()
        self._checked: set[str] = set()  # tools against which contracts were checked
        self._canary_text = f"canary {self._session_id}"
        self._canary = make_canary_guard(self._canary_text)
        # for frameworks that tell what is wired apart by its name
        self.label = f"edictum_{next(NUMBERS)}"

    @property
    def session_id(self) -> str:
        """The session of calls for which neither the options nor the framework name one."""
        return self._session_id

    def set_principal(self, principal: Principal | None) -> None:
        """Set the principal of calls from now on, whatever ``principal=`` was. None leaves it to
        the guard, or else to the framework.
        """
        self._caller.set_principal(principal)

    def identify(self, context: Any) -> Identity:
        """Return what the framework knows about the caller, from its own context of the run.

        Only ids that last for a conversation, and that neither a model nor an anonymous client can
        choose. With the id of a run or a request, every call would begin a new session.
        """
        return NO_IDENTITY

    # --- The framework ----------------------------------------------------------------------------

    @classmethod
    def load(cls, module: str) -> Any:
        """Import a module of the framework; an unsupported version is an EdictumConfigError."""
        for distribution, (first, beyond) in cls.requires.items():
            check_version(cls.__name__, distribution, first, beyond)
        return import_module(module)

    def control_flow(self) -> tuple[type[BaseException], ...]:
        """Return the exceptions by which the framework defers a call or leaves it."""
        return ()

    def make_park(self, context: Any) -> Park | str:
        """Return a function that ends a run of the framework while a person decides, or the reason
        why there is none.

        The function gets the open ApprovalRequest. It raises one of ``control_flow``; or it returns
        what the framework was told when it continued, as a HostAnswer, or WAIT.
        """
        return CANNOT_PAUSE

    @cached_property
    def _signals(self) -> tuple[type[BaseException], ...]:
        return self.control_flow()  # looked up in the framework's modules, once for all calls

    def with_redacted_text(self, error: BaseException, text: str) -> BaseException:
        """Return the tool's exception with the text that may be shown."""
        return replace_text(error, text)

    @contextmanager
    def in_turn(self, turn: TurnPort) -> Iterator[None]:
        """Attach a turn of ``edictum.harness`` to the calls that are made inside.

        They are counted in the turn's session, if it has one. Only where the adapter runs the tools
        itself can they be stopped at the turn's deadline.
        """
        token = TURN.set(turn)
        try:
            yield
        finally:
            TURN.reset(token)

    @contextmanager
    def around(self, call: Any, args: Mapping[str, Any]) -> Iterator[None]:
        """Mark what happens inside as part of ``call``, an object that exists for one call only.

        The arguments are copied: the same objects may come back with other contents.
        """
        token = AROUND.set((*AROUND.get(), (self, call, copy_object(args))))
        try:
            yield
        finally:
            AROUND.reset(token)

    def is_around(self, call: Any, args: Mapping[str, Any]) -> bool:
        """Return whether this adapter, wired twice, governs this call already."""
        return call is not None and any(
            adapter is self and known is call and is_same(args, checked)
            for adapter, known, checked in AROUND.get()
        )

    @staticmethod
    def hold_to_checked_args(given: Mapping[str, Any], checked: Mapping[str, Any]) -> None:
        """Deny the call, from inside its body and before the tool runs, if its arguments differ."""
        if not is_same(given, checked) and repr(given) != repr(checked):  # as with a NaN
            raise Declined(CHANGED_INSIDE)

    # --- Frameworks in which the adapter runs the tool --------------------------------------------

    def call(
        self, name: str, args: Mapping[str, Any], body: Body, **details: Unpack[CallDetails]
    ) -> ToolReply:
        """Govern one call. ``body`` gets the checked arguments as a dict and runs the tool."""
        call, signals = self._describe(name, args, details), self._signals

        def run(**checked: Any) -> Any:
            try:
                with enclose_calls(call.guard, call.caller):
                    return close_lazy_result(body(checked))
            except signals as signal:
                raise Pause(signal) from signal

        try:
            call.check(type(self).__name__)
            outcome = call.guard.dispatch_sync(
                name, args, run, flag=call.flag, turn=TURN.get(), **call.options
            )
        except signals:
            raise
        except Exception as exc:
            outcome = self._deny_unreadable(call, exc)
        reply = self.reply(outcome, call.on_warn)
        if not self._is_to_be_stored(call, reply):
            return reply
        return self._refer(reply, store_result(*self._describe_storing(call, reply)))

    async def acall(
        self, name: str, args: Mapping[str, Any], body: AsyncBody, **details: Unpack[CallDetails]
    ) -> ToolReply:
        """Govern one call of an asynchronous framework."""
        call, signals = await self._adescribe(name, args, details), self._signals

        async def run(**checked: Any) -> Any:
            try:
                with enclose_calls(call.guard, call.caller):
                    return close_lazy_result(await body(checked))
            except signals as signal:
                raise Pause(signal) from signal

        try:
            call.check(type(self).__name__)
            outcome = await call.guard.dispatch(
                name, args, run, flag=call.flag, turn=TURN.get(), **call.options
            )
        except signals:
            raise
        except Exception as exc:
            outcome = await self._adeny_unreadable(call, exc)
        reply = await self.areply(outcome, call.on_warn)
        if not self._is_to_be_stored(call, reply):
            return reply
        return self._refer(reply, await store_result_async(*self._describe_storing(call, reply)))

    def can_pause(self, name: str) -> bool:
        """Return whether a person may be asked about a tool, and the run may end for it."""
        return self._parks and self.guard._keeps_questions and self.guard._can_ask(name)

    async def ask_ahead(
        self, name: str, args: Mapping[str, Any], **details: Unpack[CallDetails]
    ) -> bool:
        """Ask a person about a call that the framework has not begun, if the guard would ask.

        Return whether the answer is still awaited, so that the framework must pause. For frameworks
        that can pause only before they begin a call.
        """
        call = await self._adescribe(name, args, {**details, "park": ASK_ONLY})
        if call.caller.session_id == self._session_id and not self._has_session:
            self.say_waits(f"a run does not name its session. {self.session_hint}".rstrip(" ."))
            return False
        return await ask_ahead(call)

    # --- Frameworks with a hook before the tool and one after it ----------------------------------

    def before(
        self, key: str, name: str, args: Mapping[str, Any], **details: Unpack[CallDetails]
    ) -> ToolReply | Ticket:
        """Open the call. Return a denial, or a ticket whose ``args`` the tool must be run with."""
        call = self._describe(name, args, details)
        try:
            call.check(type(self).__name__)
            ticket = call.guard.begin_sync(name, args, flag=call.flag, **call.options)
            if ticket.allowed and ticket.rewritten and not self.hands_on_args:
                ticket.decline_sync(FIXED_ARGS)
            return self._keep(key, ticket)
        except self._signals:
            raise
        except Exception as exc:
            return self.reply(self._deny_unreadable(call, exc))

    async def abefore(
        self, key: str, name: str, args: Mapping[str, Any], **details: Unpack[CallDetails]
    ) -> ToolReply | Ticket:
        """Do as ``before`` does, for an asynchronous framework."""
        call = await self._adescribe(name, args, details)
        try:
            call.check(type(self).__name__)
            ticket = await call.guard.begin(name, args, flag=call.flag, **call.options)
            if ticket.allowed and ticket.rewritten and not self.hands_on_args:
                await ticket.decline(FIXED_ARGS)
            return self._keep(key, ticket)
        except self._signals:
            raise
        except Exception as exc:
            return self.reply(await self._adeny_unreadable(call, exc))

    def _keep(self, key: str, ticket: Ticket) -> ToolReply | Ticket:
        if ticket.outcome is not None:
            return self.reply(ticket.outcome)
        self._tickets.put(key, ticket)
        return ticket

    def after(
        self,
        key: str,
        value: Any = None,
        error: BaseException | None = None,
        *,
        on_warn: OnWarn = None,
        args: Mapping[str, Any] | None = None,
        is_completed: bool = False,
    ) -> ToolReply | None:
        """Close the call with what the tool returned or raised; return None if none is open.

        ``args``: those that the framework says the tool ran with. If they are not those that were
        checked, the call fails with ArgumentsChanged; for ``is_completed`` see the ticket.
        """
        ticket = self._tickets.take(key)
        if ticket is None:
            return None
        if _is_changed(args, ticket):
            closed = ticket.finish_otherwise_sync(args, value, error, is_completed=is_completed)
            return self.reply(closed, on_warn)
        if error is None:
            return self.reply(ticket.finish_sync(value), on_warn)
        if isinstance(error, CancelledError):
            return ToolReply(ticket.cancel_sync(), error=error)
        if isinstance(error, self._signals):
            return ToolReply(ticket.pause_sync(error), error=error)
        return self.reply(ticket.fail_sync(error), on_warn)

    async def aafter(
        self,
        key: str,
        value: Any = None,
        error: BaseException | None = None,
        *,
        on_warn: OnWarn = None,
        args: Mapping[str, Any] | None = None,
        is_completed: bool = False,
    ) -> ToolReply | None:
        """Do as ``after`` does, for an asynchronous framework."""
        ticket = self._tickets.take(key)
        if ticket is None:
            return None
        if _is_changed(args, ticket):
            closed = await ticket.finish_otherwise(args, value, error, is_completed=is_completed)
            return await self.areply(closed, on_warn)
        if error is None:
            return await self.areply(await ticket.finish(value), on_warn)
        if isinstance(error, CancelledError):
            return ToolReply(await ticket.cancel(), error=error)
        if isinstance(error, self._signals):
            return ToolReply(await ticket.pause(error), error=error)
        return await self.areply(await ticket.fail(error), on_warn)

    # --- Towards the guard ------------------------------------------------------------------------

    def _describe(self, name: str, args: Mapping[str, Any], details: CallDetails) -> GuardCall:
        if name == CANARY:
            return self._describe_canary(name, args, details)
        return self._fill_in(name, args, details, self._caller.resolve(details.get("context")))

    async def _adescribe(
        self, name: str, args: Mapping[str, Any], details: CallDetails
    ) -> GuardCall:
        if name == CANARY:
            return self._describe_canary(name, args, details)
        return self._fill_in(
            name, args, details, await self._caller.aresolve(details.get("context"))
        )

    def _describe_canary(
        self, name: str, args: Mapping[str, Any], details: CallDetails
    ) -> GuardCall:
        """Describe a call that must be denied in any case."""
        options: CallOptions = {"call_id": details.get("call_id"), "session_id": self._session_id}
        return GuardCall(self._canary, name, args, options, details.get("flag"), None)

    def _fill_in(
        self, name: str, args: Mapping[str, Any], details: CallDetails, caller: ResolvedCaller
    ) -> GuardCall:
        """Add the caller: as configured, as the framework knows it, or with a session of our
        own.
        """
        flag, on_warn = details.pop("flag", None), details.pop("on_warn", None)
        is_plain = details.pop("is_plain", None)
        session_id, context = self._session_id, details.pop("context", None)
        if self.guard._asks_people:
            self._name_signals(details, context)
        identity = NO_IDENTITY
        try:
            identity = self._find_identity(caller, context)
            self._add_principal(caller, identity)
            session_id = self._choose_session(caller, identity)
        except Exception as exc:
            caller.fail("session_id", exc)
        caller.choose_session(session_id)
        details.update(cast("CallDetails", caller.options))
        known = Identity(session_id, identity.user_id, identity.principal)
        self._check_tool(name, details.get("parameters"))
        return GuardCall(
            self.guard, name, args, details, flag, on_warn, known, caller.problem, is_plain
        )

    def _find_identity(self, caller: ResolvedCaller, context: Any) -> Identity:
        """Return the identity of the caller, as far as it is not configured: for a sub-agent that
        of its caller.
        """
        if (outer := find_outer_caller(self.guard)) is not None:
            return outer
        configured = {"session_id", "principal"} <= caller.options.keys()
        return NO_IDENTITY if context is None or configured else self.identify(context)

    def _add_principal(self, caller: ResolvedCaller, identity: Identity) -> None:
        """Add the principal: the resolver takes precedence, the framework's user comes last."""
        if self._principal_resolver is not None:
            caller.options.pop("principal", None)
            caller.options["principal_resolver"] = self._principal_resolver
            return
        if "principal" in caller.options or self.guard._names_principal:
            return
        if identity.principal is not None:
            caller.options["principal"] = identity.principal
        elif (user_id := to_id(identity.user_id)) is not None:
            caller.options["principal"] = Principal(user_id=user_id)

    def _name_signals(self, details: CallDetails, context: Any) -> None:
        """Set which exceptions of an approval backend are the framework's own, and whether the run
        can end while a person decides.
        """
        if self._signals:
            details["control_flow"] = self._signals
        own = details.pop("park", None)
        if not self._parks or not self.guard._keeps_questions:
            return
        park = own if callable(own) else self.make_park(context)
        if callable(park):
            details["park"] = park
        else:
            self.say_waits(park)

    def say_waits(self, why: str) -> None:
        """Log once that calls wait for people in this process although they were meant to pause."""
        if self._parks and self.guard._keeps_questions and not self._said_waits:
            self._said_waits = True
            text = "%s: calls that ask a person wait for the answer in this process: %s."
            log(ADAPTER_WARNING, text, type(self).__name__, why)

    def _choose_session(self, caller: ResolvedCaller, identity: Identity) -> str:
        turn = TURN.get()
        chosen = (turn is not None and turn.session_id) or caller.options.get("session_id")
        if chosen:
            return cast("str", chosen)
        found = to_id(identity.session_id)
        if found is None:
            self._warn_shared_session()
            return self._session_id
        check_session_id(found)
        return found

    def check_tools(self, tools: Mapping[str, Any]) -> None:
        """Raise for contracts that are wrong about these tools, as ``guard.check_tools`` does.

        ``tools`` are their parameters by name, in any form that the guard takes.
        """
        for name, parameters in tools.items():
            self.guard._check_tool(name, parameters).raise_errors()
        self._checked.update(tools)

    def _check_tool(self, name: str, parameters: Any) -> None:
        """Check the contracts against a tool that is first seen at a call; errors are logged."""
        if name in self._checked or len(self._checked) >= MAX_CHECKED_TOOLS:
            return
        self._checked.add(name)
        with suppress(Exception):  # a model's name for a tool that there cannot be, an odd schema
            for error in self.guard._check_tool(name, parameters).errors:
                log(POLICY_TOOL_MISMATCH, "%s", error, tool=name)

    def _warn_shared_session(self) -> None:
        """Log once that all calls share one session: a limit for each user is then one for all
        users.
        """
        if not self._has_warned:
            self._has_warned = True
            log(
                ADAPTER_WARNING,
                "%s: all calls share one session, %r, and so its limits. %sPass session_id=, a"
                " value or a function of %s.",
                type(self).__name__,
                self._session_id,
                self.session_hint,
                self.context_name,
            )

    async def adeny(
        self, name: str, args: Mapping[str, Any], reason: str, **details: Unpack[CallDetails]
    ) -> ToolReply:
        """Deny a call without asking any contract; the denial is counted and recorded."""
        from edictum.adapters._unreadable import DenyingTurn

        return await self._adeny_in(DenyingTurn(reason), name, args, details)

    async def adeny_arguments(
        self, name: str, text: str, **details: Unpack[CallDetails]
    ) -> ToolReply:
        """Deny a call whose arguments are not an object, as a turn of the harness does: judged as
        if there were none, it would be judged by its defaults.
        """
        from edictum.adapters._unreadable import make_malformed_turn

        return await self._adeny_in(make_malformed_turn(text), name, text, details)

    async def _adeny_in(
        self, turn: TurnPort, name: str, args: Any, details: CallDetails
    ) -> ToolReply:
        call = await self._adescribe(name, args, details)
        return self.reply(await call.guard.dispatch(name, args, None, turn=turn, **call.options))

    def _deny_unreadable(self, call: GuardCall, exc: Exception) -> ToolOutcome:
        """Deny a call to which the guard gave no answer: it cannot be read, or the gate failed."""
        try:
            turn = _make_denying_turn(call, exc)
            return call.guard.dispatch_sync(call.name, call.args, None, turn=turn, **call.options)
        except Exception as again:
            return deny_broken_gate(call.name, again)

    async def _adeny_unreadable(self, call: GuardCall, exc: Exception) -> ToolOutcome:
        try:
            turn = _make_denying_turn(call, exc)
            return await call.guard.dispatch(call.name, call.args, None, turn=turn, **call.options)
        except Exception as again:
            return deny_broken_gate(call.name, again)

    # --- Towards the framework --------------------------------------------------------------------

    def reply(self, outcome: ToolOutcome, on_warn: OnWarn = None) -> ToolReply:
        """Return the reply for an outcome; ``on_warn`` may replace the value."""
        reply = self._make_reply(outcome)
        return reply if on_warn is None else tell_findings(reply, on_warn)

    async def areply(self, outcome: ToolOutcome, on_warn: OnWarn = None) -> ToolReply:
        reply = self._make_reply(outcome)
        return reply if on_warn is None else await tell_findings_async(reply, on_warn)

    def _make_reply(self, outcome: ToolOutcome) -> ToolReply:
        # what the reader shows is bounded already
        is_reader = self._store is not None and outcome.tool_name == READER_NAME
        limit = NO_LIMIT if is_reader else self._limit
        return make_reply(outcome, self.with_redacted_text, limit)

    # --- Results that are too large for a model ---------------------------------------------------

    def make_reader(self) -> Callable[..., dict[str, Any]]:
        """Return ``read_artifact``, a tool for the agent: it reads what was stored for its session.

        It is a plain function, to be given to the agent like any other tool of it.
        """
        if self._store is None:
            hint = "Pass artifact_store=ArtifactStore() to the adapter."
            raise EdictumConfigError("This adapter has no store to read from.", hint=hint)
        return make_session_reader(self._store, self.guard)

    def _make_readers(self, make: Callable[[Any], Any]) -> list[Any]:
        """Return the reader as a tool of the framework, if there is a store."""
        return [] if self._store is None else [make(self.make_reader())]

    def _is_to_be_stored(self, call: GuardCall, reply: ToolReply) -> bool:
        if self._store is None or type(reply.outcome) is not ToolExecutionResult:
            return False
        if reply.limit.fit(reply.value) is reply.value:
            return False
        return call.is_plain is None or call.is_plain()

    def _describe_storing(self, call: GuardCall, reply: ToolReply) -> tuple[Any, str, Any, Any]:
        return self._store, str(call.caller.session_id), reply.outcome, reply.value

    def _refer(self, reply: ToolReply, stored: ToolOutcome | None) -> ToolReply:
        return reply if stored is None else self._make_reply(stored)


def _is_changed(args: Mapping[str, Any] | None, ticket: Ticket) -> TypeGuard[Mapping[str, Any]]:
    return args is not None and not is_same(args, ticket.args)


def _make_denying_turn(call: GuardCall, exc: Exception) -> TurnPort:
    """Return a turn that says what is wrong with the call; if nothing is, raise the failure of the
    gate.
    """
    from edictum.adapters._unreadable import DenyingTurn, find_input_error, make_denying_turn

    if isinstance(exc, CannotBeMade):
        return make_denying_turn(exc.gate, str(exc))
    reason = find_input_error(call.name, call.args)
    if reason is None:
        raise exc
    return DenyingTurn(reason)
