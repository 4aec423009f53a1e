"""What all adapters share. An adapter translates: a framework's request to a call of the guard, the
outcome to a reply.

There are two kinds of framework. Where the adapter can run the tool itself (a middleware with a
``handler``), it uses ``call`` or ``acall``: the tool is the body of one governed call. Where the
framework runs it between two hooks, it uses ``before`` and ``after`` (and their asynchronous
twins), and the ticket waits in a table under the framework's call id, never in a shared slot.

Either way the adapter gets a ``Reply``: what to hand back in the framework's own form. Three things
hold for all of them:

1. What goes wrong in the gate refuses the call. A framework may swallow an exception of its hooks
   and run the tool; a reply that denies is a value, and cannot be swallowed.
2. A tool's exception goes on to whoever handles it without the adapter: ``Reply.error`` is raised,
   not turned into text. Its text is redacted first, in the exception itself, so that its type
   stays.
3. Exceptions by which a framework steers (``control_flow``) are no failures. They go on untouched,
   as the same object, once the call has been closed as paused: its slots are given back, since the
   framework runs the same call again from its start.
"""

from __future__ import annotations

import logging
import re
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from importlib import import_module, metadata
from inspect import isawaitable
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack

from edictum.adapters._wire import same
from edictum.core._records import record
from edictum.core.call import Principal, check_tool_name, snapshot
from edictum.core.config import FailureFlag
from edictum.core.contract import Verdict, precondition
from edictum.core.decide import describe
from edictum.core.effects import Pause
from edictum.core.jsonable import dumps
from edictum.core.turn import TurnPort
from edictum.errors import EdictumConfigError, EdictumInputError, EdictumToolError
from edictum.execution.portal import PORTAL
from edictum.findings import Finding
from edictum.guard import Edictum
from edictum.outcomes import (
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    outcome_to_model_content,
)
from edictum.runtime.ticket import Ticket, TicketTable

if TYPE_CHECKING:
    from edictum.call_options import CallOptions

logger = logging.getLogger("edictum")

CANARY = "edictum_canary"
FIXED_ARGS = (
    "A hook rewrote the arguments, and this framework can only run its tool with those of the"
    " model."
)
# The turn that the calls of this context belong to. Frameworks hand contexts on to the threads and
# tasks that run their tools.
TURN: ContextVar[TurnPort | None] = ContextVar("edictum_turn", default=None)
# The calls that adapters are around in this context, as (adapter, the framework's object for the
# call, its arguments).
AROUND: ContextVar[tuple[tuple[Any, Any, Mapping[str, Any]], ...]] = ContextVar(
    "edictum_around", default=()
)
NUMBERS = count(1)
OnWarn = Callable[[Any, list[Finding]], Any]
Body = Callable[[dict[str, Any]], Any]


@record
class Reply:
    """What an adapter hands back. Exactly one of these: the tool's ``value``, a ``text`` in its
    place, or ``error`` to raise.
    """

    outcome: ToolOutcome
    value: Any = None
    text: str | None = None
    error: BaseException | None = None

    @property
    def denied(self) -> bool:
        return isinstance(self.outcome, ToolDenied)

    @property
    def failed(self) -> bool:
        """Whether the framework should mark the result as an error: refused, failed, out of
        time.
        """
        return not isinstance(self.outcome, (ToolExecutionResult, ToolArtifactReference))

    def get(self) -> Any:
        """The value or the text; the tool's exception is raised."""
        if self.error is not None:
            raise self.error
        return self.value if self.text is None else self.text


class AdapterOptions(TypedDict, total=False):
    """The keywords of every adapter, for those that have more to set up and pass these on."""

    guard: Edictum
    session_id: str | None
    principal: Principal | None
    principal_resolver: Callable[..., Any] | None


class Adapter:
    """Base of all adapters."""

    # Distribution -> (first supported version, first that is not). Checked when the framework is
    # first imported.
    requires: ClassVar[Mapping[str, tuple[str, str]]] = {}
    # Whether the hook before a tool can give it other arguments than the model's: what a hook of
    # the guard rewrites is then handed on as ``ticket.args``. Without that a rewritten call is
    # refused, because it would run with what was not checked.
    hands_on_args: ClassVar[bool] = False

    def __init__(
        self,
        guard: Edictum,
        session_id: str | None = None,
        principal: Principal | None = None,
        principal_resolver: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(guard, Edictum):
            raise EdictumConfigError(
                f"{type(self).__name__}: {guard!r} is not a guard.", hint="Pass an Edictum object."
            )
        self.guard = guard
        self._session_id = session_id or guard.new_session_id()
        self._principal = principal
        self._principal_resolver = principal_resolver
        self._tickets = TicketTable()
        self.label = (  # for frameworks that tell what is wired apart by its name
            f"edictum_{next(NUMBERS)}"
        )
        self._canary = _canary_guard(f"canary {self._session_id}")

    @property
    def session_id(self) -> str:
        return self._session_id

    def set_principal(self, principal: Principal | None) -> None:
        """On whose behalf this adapter's calls are made from now on; None leaves it to the
        guard.
        """
        self._principal = principal

    # --- The framework ----------------------------------------------------------------------------

    @classmethod
    def load(cls, module: str) -> Any:
        """Import a module of the framework; an unsupported or missing version is reported in one
        sentence.
        """
        for distribution, (first, beyond) in cls.requires.items():
            check_version(cls.__name__, distribution, first, beyond)
        return import_module(module)

    def control_flow(self) -> tuple[type[BaseException], ...]:
        """Exceptions by which the framework puts a call off or leaves it: neither results nor
        failures.
        """
        return ()

    @cached_property
    def _signals(self) -> tuple[type[BaseException], ...]:
        return (
            self.control_flow()
        )  # the same for all calls, and looked up in the framework's modules

    @contextmanager
    def in_turn(self, turn: TurnPort) -> Iterator[None]:
        """Attach a turn of ``edictum.harness`` to the calls that are made inside: its deadline, its
        gates and its artifact store.

        Only where the adapter runs the tools itself: a framework that runs them between two hooks
        cannot be stopped at a deadline.
        """
        token = TURN.set(turn)
        try:
            yield
        finally:
            TURN.reset(token)

    @contextmanager
    def around(self, call: Any, args: Mapping[str, Any]) -> Iterator[None]:
        """What happens inside is this call, with these arguments. ``call`` is an object that the
        framework has for this call only.
        """
        token = AROUND.set((*AROUND.get(), (self, call, args)))
        try:
            yield
        finally:
            AROUND.reset(token)

    def is_around(self, call: Any, args: Mapping[str, Any]) -> bool:
        """Whether this adapter is asked about a call a second time, because it was wired twice.
        Other arguments are another question.
        """
        return call is not None and any(
            who is self and what is call and same(args, checked)
            for who, what, checked in AROUND.get()
        )

    # --- Frameworks in which we run the tool ------------------------------------------------------

    def call(
        self,
        name: str,
        args: Mapping[str, Any],
        body: Body,
        *,
        on_warn: OnWarn | None = None,
        flag: FailureFlag | None = None,
        **options: Unpack[CallOptions],
    ) -> Reply:
        """Govern one call of a synchronous framework. ``body`` gets the checked arguments as a dict
        and runs the tool.
        """
        signals = self._signals

        def run(**checked: Any) -> Any:
            try:
                return body(checked)
            except signals as signal:
                raise Pause(signal) from signal

        try:
            outcome = self._guard(name).dispatch_sync(
                name, args, run, flag=flag, turn=TURN.get(), **self.options(**options)
            )
        except signals:
            raise
        except Exception as exc:
            outcome = self._unheard(name, args, exc, options)
        return self.reply(outcome, on_warn)

    async def acall(
        self,
        name: str,
        args: Mapping[str, Any],
        body: Callable[[dict[str, Any]], Awaitable[Any]],
        *,
        on_warn: OnWarn | None = None,
        flag: FailureFlag | None = None,
        **options: Unpack[CallOptions],
    ) -> Reply:
        """As ``call``, for an asynchronous framework."""
        signals = self._signals

        async def run(**checked: Any) -> Any:
            try:
                return await body(checked)
            except signals as signal:
                raise Pause(signal) from signal

        try:
            outcome = await self._guard(name).dispatch(
                name, args, run, flag=flag, turn=TURN.get(), **self.options(**options)
            )
        except signals:
            raise
        except Exception as exc:
            outcome = await self._aunheard(name, args, exc, options)
        return await self.areply(outcome, on_warn)

    # --- Frameworks with a hook before the tool and one after it ----------------------------------

    def before(
        self,
        key: str,
        name: str,
        args: Mapping[str, Any],
        *,
        flag: FailureFlag | None = None,
        **options: Unpack[CallOptions],
    ) -> Reply | Ticket:
        """Open the call. A Reply: it is refused. A Ticket: run the tool with ``ticket.args``, then
        call ``after`` with the same key.
        """
        try:
            ticket = self._guard(name).begin_sync(name, args, flag=flag, **self.options(**options))
            if ticket.allowed and ticket.rewritten and not self.hands_on_args:
                ticket.decline_sync(FIXED_ARGS)
            return self._opened(key, ticket)
        except Exception as exc:
            return self.reply(self._unheard(name, args, exc, options))

    async def abefore(
        self,
        key: str,
        name: str,
        args: Mapping[str, Any],
        *,
        flag: FailureFlag | None = None,
        **options: Unpack[CallOptions],
    ) -> Reply | Ticket:
        """As ``before``, for an asynchronous framework."""
        try:
            ticket = await self._guard(name).begin(name, args, flag=flag, **self.options(**options))
            if ticket.allowed and ticket.rewritten and not self.hands_on_args:
                await ticket.decline(FIXED_ARGS)
            return self._opened(key, ticket)
        except Exception as exc:
            return self.reply(await self._aunheard(name, args, exc, options))

    def _opened(self, key: str, ticket: Ticket) -> Reply | Ticket:
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
        on_warn: OnWarn | None = None,
    ) -> Reply | None:
        """Close the call with what the tool returned or raised. None: no call is open under this
        key, nothing is governed.
        """
        ticket = self._tickets.take(key)
        if ticket is None:
            return None
        if error is None:
            return self.reply(ticket.finish_sync(value), on_warn)
        if isinstance(error, CancelledError):
            return Reply(ticket.cancel_sync(), error=error)
        if isinstance(error, self.control_flow()):
            return Reply(ticket.pause_sync(error), error=error)
        return self.reply(ticket.fail_sync(error), on_warn)

    async def aafter(
        self,
        key: str,
        value: Any = None,
        error: BaseException | None = None,
        *,
        on_warn: OnWarn | None = None,
    ) -> Reply | None:
        ticket = self._tickets.take(key)
        if ticket is None:
            return None
        if error is None:
            return await self.areply(await ticket.finish(value), on_warn)
        if isinstance(error, CancelledError):
            return Reply(await ticket.cancel(), error=error)
        if isinstance(error, self.control_flow()):
            return Reply(await ticket.pause(error), error=error)
        return await self.areply(await ticket.fail(error), on_warn)

    # --- Towards the guard ------------------------------------------------------------------------

    def _guard(self, name: str) -> Edictum:
        return self._canary if name == CANARY else self.guard

    def options(self, **options: Unpack[CallOptions]) -> CallOptions:
        """The options of a guard call. The adapter's resolver goes before its principal, and both
        before what the guard has.
        """
        options["session_id"] = self._session_id
        if self._principal_resolver is not None:
            options["principal_resolver"] = self._principal_resolver
        elif self._principal is not None:
            options.setdefault("principal", self._principal)
        return options

    def refuse(
        self, name: str, args: Mapping[str, Any], why: str, **options: Unpack[CallOptions]
    ) -> ToolOutcome:
        """Refuse a call before any rule is asked about it; it is counted and recorded. One without
        a proper name goes under another.
        """
        return self._guard(name).dispatch_sync(
            name, args, None, turn=_refusing(why), **self.options(**options)
        )

    async def arefuse(
        self, name: str, args: Mapping[str, Any], why: str, **options: Unpack[CallOptions]
    ) -> ToolOutcome:
        return await self._guard(name).dispatch(
            name, args, None, turn=_refusing(why), **self.options(**options)
        )

    def _unheard(
        self, name: str, args: Mapping[str, Any], exc: Exception, options: CallOptions
    ) -> ToolOutcome:
        """A call that the gate gave no outcome: it cannot be taken as the model sent it, or the
        gate failed.
        """
        try:
            why = _unreadable(name, args)
            return broken(name, exc) if why is None else self.refuse(name, args, why, **options)
        except Exception as again:
            return broken(name, again)

    async def _aunheard(
        self, name: str, args: Mapping[str, Any], exc: Exception, options: CallOptions
    ) -> ToolOutcome:
        try:
            why = _unreadable(name, args)
            return (
                broken(name, exc) if why is None else await self.arefuse(name, args, why, **options)
            )
        except Exception as again:
            return broken(name, again)

    # --- Towards the framework --------------------------------------------------------------------

    def reply(self, outcome: ToolOutcome, on_warn: OnWarn | None = None) -> Reply:
        """The outcome as a reply; objections of postconditions are told to ``on_warn``, which may
        replace the value.
        """
        reply = reply_for(outcome, self.retold)
        if on_warn is None:
            return reply
        told = _tell(reply, on_warn)
        return _replaced(reply, PORTAL.run(_settled(told)) if isawaitable(told) else told)

    async def areply(self, outcome: ToolOutcome, on_warn: OnWarn | None = None) -> Reply:
        reply = reply_for(outcome, self.retold)
        if on_warn is None:
            return reply
        told = _tell(reply, on_warn)
        return _replaced(reply, await _settled(told) if isawaitable(told) else told)

    def retold(self, error: BaseException, text: str) -> BaseException:
        """The tool's exception with the text that may be shown. Its type stays where its text can
        be replaced.
        """
        error.args = (text,)
        return error if describe(error) in (text, repr(text)) else EdictumToolError(text)

    # --- Canary -----------------------------------------------------------------------------------

    def self_test(self, target: Any = None) -> Literal["governed"]:
        """Send a call that must be denied through the framework, as the model's calls go, and see
        that it is.

        ``target`` is what was wired (the agent, the tool node, ...); without one, the adapter wires
        the smallest thing that can call a tool. The answer is "governed", or an EdictumConfigError:
        then calls do not pass through this adapter.
        """
        ran: list[bool] = []

        def canary() -> str:
            ran.append(True)
            return "the canary's tool ran"

        text = self._probe(target, canary)
        if ran or self._canary_text not in text:
            what = "its tool ran" if ran else f"the reply was {text[:200]!r}"
            raise EdictumConfigError(
                f"{type(self).__name__} does not govern"
                f" {target if target is not None else 'its framework'!r:.120}: a call that must be"
                f" denied was not ({what}).",
                hint="Wire the adapter as its page in docs/adapters shows.",
            )
        return "governed"

    @property
    def _canary_text(self) -> str:
        return f"canary {self._session_id}"

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Have the framework call the tool named CANARY, and return what its model would read.
        ``tool`` is for one made on the spot.
        """
        raise NotImplementedError(f"{type(self).__name__} has no canary")


def _canary_guard(reason: str) -> Edictum:
    """A guard of its own, so that the canary is denied in observe mode too and counts in nobody's
    session.
    """

    @precondition(CANARY)
    def canary(call: Any) -> Verdict:
        return Verdict.fail(reason)

    return Edictum(contracts=[canary])


def _refusing(why: str) -> TurnPort:
    from edictum.adapters._refused import RefusingTurn

    return RefusingTurn(why)


def _unreadable(name: str, args: Mapping[str, Any]) -> str | None:
    """What is wrong with a call's name or with its arguments, if anything is."""
    try:
        check_tool_name(name)
        snapshot(name, args)
    except EdictumInputError as exc:
        return str(exc)
    return None


# --- From outcome to reply ------------------------------------------------------------------------


def broken(name: str, exc: BaseException) -> ToolDenied:
    """The gate itself failed: the call is refused."""
    logger.error("the gate failed for a call of %r, which is refused", name, exc_info=exc)
    return ToolDenied(
        "",
        name,
        "policy_error",
        f"The gate failed: {describe(exc)}",
        decision_source="adapter",
        policy_error=True,
    )


def denial_text(outcome: ToolDenied) -> str:
    """What the model reads of a denial, the same in every framework."""
    return f"DENIED: {outcome.details or outcome.reason}"


def as_text(value: Any) -> str:
    """A value as frameworks put it into a message: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


def reply_for(outcome: ToolOutcome, retold: Callable[[BaseException, str], BaseException]) -> Reply:
    match outcome:
        case ToolExecutionResult():
            return Reply(outcome, value=outcome.value)
        case ToolDenied():
            return Reply(outcome, text=denial_text(outcome))
        case ToolFailure(exception=BaseException() as error):
            return Reply(
                outcome,
                error=error if describe(error) == outcome.error else retold(error, outcome.error),
            )
        case ToolFailure():
            return Reply(outcome, value=outcome.value)
        case ToolTimeout():
            return Reply(
                outcome, text=f"Tool '{outcome.tool_name}' timed out after {outcome.elapsed_ms} ms."
            )
        case ToolArtifactReference():
            return Reply(outcome, text=outcome_to_model_content(outcome))


def _tell(reply: Reply, on_warn: OnWarn | None) -> Any:
    findings: tuple[Finding, ...] = getattr(reply.outcome, "findings", ())
    if on_warn is None or not findings:
        return None
    try:
        return on_warn(
            reply.value if reply.error is None else describe(reply.error), list(findings)
        )
    except Exception:
        logger.exception("on_postcondition_warn raised; the result stays as it is")
        return None


async def _settled(told: Awaitable[Any]) -> Any:
    try:
        return await told
    except Exception:
        logger.exception("on_postcondition_warn raised; the result stays as it is")
        return None


def _replaced(reply: Reply, told: Any) -> Reply:
    """None leaves the result as it is. An exception stays one: the callback sees its text and
    cannot replace it.
    """
    return reply if told is None or reply.error is not None else Reply(reply.outcome, value=told)


# --- Versions -------------------------------------------------------------------------------------


# an adapter loads modules at every call, and looking into an installed distribution takes half a
# millisecond
@cache
def check_version(adapter: str, distribution: str, first: str, beyond: str) -> None:
    """Refuse a framework outside the range that the adapter supports."""
    wanted = f"{distribution}>={first},<{beyond}"
    try:
        installed = metadata.version(distribution)
    except metadata.PackageNotFoundError as exc:
        raise EdictumConfigError(
            f"{adapter} needs {wanted}, which is not installed.",
            hint=f"Run: pip install '{wanted}'",
        ) from exc
    if not numbers(first) <= numbers(installed) < numbers(beyond):
        raise EdictumConfigError(
            f"{adapter} supports {wanted}; installed is {installed}.",
            hint=f"Run: pip install '{wanted}'",
        )


def numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version, for comparing: "1.4.7rc1" is (1, 4, 7)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))
