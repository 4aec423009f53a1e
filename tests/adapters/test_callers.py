"""Who is calling, for each call of an adapter: options that are functions, and their failures."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import pytest

from edictum import Edictum, EdictumConfigError, EdictumInputError, OperationLimits, Principal
from edictum.adapters._base import Adapter
from edictum.adapters._identity import Identity
from edictum.harness import Turn, TurnState

ADA = Principal(user_id="ada")
SPEAKER: ContextVar[str] = ContextVar("speaker")


class Known(Adapter):
    """An adapter whose framework knows a conversation and a user."""

    context_name: ClassVar = "the run"

    def identify(self, context: Any) -> Identity:
        return Identity(context.conversation, context.user)


def run_of(conversation: Any = "framework", user: Any = None) -> Any:
    return SimpleNamespace(conversation=conversation, user=user, name="ada")


WAYS = ("call", "acall", "before", "abefore")


def make_call(adapter: Adapter, way: str = "call", context: Any = None, ran: Any = None) -> Any:
    """Make one call; return the reply, or the ticket of a call that may run."""

    async def abody(args: Any) -> Any:
        return _note(ran)

    if "call" in way:
        body: Any = abody if way == "acall" else lambda _: _note(ran)
        made = getattr(adapter, way)("look", {"key": 1}, body, context=context)
    else:
        made = getattr(adapter, way)("c1", "look", {"key": 1}, call_id="c1", context=context)
    return asyncio.run(made) if inspect.isawaitable(made) else made


def _note(ran: list[str] | None) -> str:
    if ran is not None:
        ran.append("ran")
    return "done"


def last(guard: Edictum) -> tuple[str, Any]:
    event = guard.local_sink.last()
    return event.session_id, (event.principal or {}).get("user_id")


# --- Precedence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_what_is_configured_goes_before_the_framework_and_that_before_the_adapter(way: str) -> None:
    guard = Edictum()
    for options, context, expected in [
        ({"session_id": "fixed", "principal": ADA}, run_of(user="eve"), ("fixed", "ada")),
        ({"session_id": lambda run: f"of {run.name}"}, run_of(), ("of ada", None)),
        ({"session_id": lambda _: None}, run_of(), ("framework", None)),
        ({}, run_of(user="eve"), ("framework", "eve")),
        ({}, run_of(conversation=42, user=UUID(int=7)), ("42", str(UUID(int=7)))),
    ]:
        make_call(Known(guard, **options), way, context)
        assert last(guard) == expected, options
    for context in (None, run_of(None), run_of("")):
        adapter = Known(guard)
        make_call(adapter, way, context)
        assert last(guard) == (adapter.session_id, None)


def test_the_guard_s_principal_goes_before_the_framework_s_user() -> None:
    for settings in ({"principal": ADA}, {"principal_resolver": lambda tool, args: ADA}):
        guard = Edictum(**settings)
        make_call(Known(guard), context=run_of(user="eve"))
        assert last(guard) == ("framework", "ada")


def test_a_principal_of_none_is_none_whoever_the_framework_and_the_guard_know() -> None:
    guard = Edictum(principal=ADA)
    make_call(Known(guard, principal=lambda _: None), context=run_of(user="eve"))
    assert last(guard) == ("framework", None)


def test_a_resolver_of_the_adapter_keeps_its_two_parameters_and_goes_first() -> None:
    guard, asked = Edictum(), list[Any]()

    def resolve(tool: str, args: Any) -> Principal:
        asked.append((tool, dict(args)))
        return ADA

    adapter = Known(guard, principal=lambda _: Principal("eve"), principal_resolver=resolve)
    make_call(adapter, context=run_of(user="eve"))
    assert (last(guard), asked) == (("framework", "ada"), [("look", {"key": 1})])


@pytest.mark.parametrize("way", WAYS)
def test_calls_in_a_turn_are_counted_in_the_session_of_the_turn(way: str) -> None:
    guard = Edictum()
    adapter = Known(guard, session_id="fixed")
    with adapter.in_turn(Turn(TurnState("turn"))):
        make_call(adapter, way, run_of())
    assert last(guard)[0] == "turn"
    with adapter.in_turn(Turn(TurnState())):
        make_call(adapter, "call", run_of())
    assert last(guard)[0] == "fixed", "a turn without a session leaves it to the adapter"


def test_a_shared_session_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    adapter = Known(Edictum())
    with caplog.at_level(logging.WARNING, "edictum"):
        for _ in range(3):
            make_call(adapter)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        f"Known: all calls share one session, {adapter.session_id!r}, and so its limits. Pass"
        " session_id=, a value or a function of the run."
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "edictum"):
        make_call(Known(Edictum()), context=run_of())
        make_call(Known(Edictum(), session_id="fixed"))
    assert caplog.records == []


# --- Functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_every_option_may_be_a_function_of_the_context(way: str, kind: str) -> None:
    guard = Edictum(limits=OperationLimits(max_cost=10))

    def make(value: Any) -> Any:
        async def find(run: Any) -> Any:
            await asyncio.sleep(0)
            return value(run)

        return value if kind == "plain" else find

    adapter = Known(
        guard,
        session_id=make(lambda run: f"of {run.name}"),
        parent_session_id=make(lambda run: ["team", "org"]),
        principal=make(lambda run: Principal(user_id=run.name)),
        metadata=make(lambda run: {"who": run.name}),
        amounts=make(lambda run: {"cost": 4}),
    )
    for _ in range(2):
        reply = make_call(adapter, way, run_of())
        if way.endswith("before"):
            after = adapter.after("c1", "done")
            assert after is not None
    assert last(guard) == ("of ada", "ada")
    for session in ("of ada", "team", "org"):
        assert guard.session(session).executions == 2
        assert guard.session(session).snapshot().amounts[""]["cost"].spent == 8
    reply = make_call(adapter, way, run_of())
    assert reply.denied, "12 of 10"


def test_a_function_of_amounts_may_take_the_call_as_well() -> None:
    guard = Edictum(limits=OperationLimits(max_cost=1))
    adapter = Known(guard, amounts=lambda run, call: {"cost": call.args["key"]})
    assert make_call(adapter, context=run_of()).get() == "done"
    assert make_call(adapter, context=run_of()).denied


def test_a_function_sees_the_context_variables_of_its_caller() -> None:
    guard = Edictum()

    async def find(_: Any) -> str:
        return SPEAKER.get()

    SPEAKER.set("here")
    make_call(Known(guard, session_id=lambda _: SPEAKER.get()))
    assert last(guard)[0] == "here"
    make_call(Known(guard, session_id=find))
    assert last(guard)[0] == "here", "awaited in another thread, in the caller's context"


def test_a_principal_that_is_set_replaces_a_function() -> None:
    guard = Edictum()
    adapter = Known(guard, principal=lambda _: Principal("eve"))
    adapter.set_principal(ADA)
    make_call(adapter, context=run_of())
    assert last(guard) == ("framework", "ada")
    adapter.set_principal(None)
    make_call(adapter, context=run_of(user="max"))
    assert last(guard) == ("framework", "max")


def test_a_principal_can_be_set_while_calls_are_made() -> None:
    guard, done = Edictum(limits=OperationLimits(None, None)), threading.Event()
    adapter = Known(guard, principal=lambda _: ADA, metadata=lambda _: {})

    def change() -> None:
        while not done.is_set():
            adapter.set_principal(ADA)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert not any(make_call(adapter, context=run_of()).denied for _ in range(500))
    finally:
        done.set()
        changing.join()


# --- When it cannot be determined -----------------------------------------------------------------


def fail(_: Any) -> Any:
    raise LookupError("no such user")


async def afail(_: Any) -> Any:
    raise LookupError("no such user")


def leave(_: Any) -> Any:
    raise SystemExit("bye")


ENDLESS: dict[str, Any] = {}
ENDLESS["itself"] = ENDLESS
FAILURES = [
    ({"session_id": fail}, "The session_id of this call could not be determined: LookupError: no such user"),
    ({"session_id": afail}, "The session_id of this call could not be determined: LookupError: no such user"),
    ({"principal": leave}, "The principal of this call could not be determined: SystemExit: bye"),
    ({"session_id": lambda _: 7}, "Invalid session_id: 7."),
    ({"session_id": lambda _: ""}, "Invalid session_id: ''."),
    ({"session_id": lambda _: "x" * 1000}, "Invalid session_id: 'xxx"),
    ({"principal": lambda _: "ada"}, "The principal of this call could not be determined:"),
    ({"metadata": lambda _: "text"}, "metadata is 'text', not a mapping."),
    ({"metadata": lambda _: ENDLESS}, "metadata cannot be copied"),
    ({"amounts": lambda _: {"cost": "much"}}, "The amounts of this call could not be determined:"),
    ({"parent_session_id": lambda _: 7}, "The parent_session_id of this call could not be"),
    ({"parent_session_id": lambda _: "framework"}, "names a session twice."),
]  # fmt: skip  # a table


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("options", "said"), FAILURES)
def test_a_call_whose_caller_is_not_known_is_denied_recorded_and_counted(
    way: str, options: Any, said: str
) -> None:
    guard, ran = Edictum(mode="observe"), list[str]()
    reply = make_call(Known(guard, **options), way, run_of(), ran)
    assert reply.denied, "even in observe mode"
    assert reply.outcome.reason == "policy_error"
    assert said in reply.outcome.details
    assert "could not be determined" not in reply.text, "the model is told less"
    assert ran == []
    (event,) = guard.local_sink.events
    assert (str(event.action), event.tool_name, event.policy_error) == ("call_denied", "look", True)
    session = guard.session("framework")
    assert (session.attempts, session.executions, session.in_flight) == (1, 0, 0)


@pytest.mark.parametrize(
    "context", [object(), run_of(("a", "tuple")), run_of("x" * 1000), run_of(True)]
)
def test_an_identity_that_cannot_be_used_denies_the_call(context: Any) -> None:
    guard = Edictum()
    adapter = Known(guard)
    reply = make_call(adapter, context=context)
    assert reply.denied
    assert "The session_id of this call could not be determined" in reply.outcome.details
    assert guard.session(adapter.session_id).attempts == 1
    configured = Known(guard, session_id="fixed", principal=ADA)
    assert make_call(configured, context=context).get() == "done", "it is not needed then"


def test_a_session_that_is_configured_is_used_although_the_framework_s_is_odd() -> None:
    guard = Edictum()
    adapter = Known(guard, session_id=lambda run: str(hash(run.conversation)))
    assert make_call(adapter, context=run_of(("a", "tuple"))).get() == "done"


@pytest.mark.parametrize(
    "options",
    [
        {"session_id": 7},
        {"session_id": lambda: "x"},
        {"principal": "ada"},
        {"metadata": "text"},
        {"amounts": {"cost": "much"}},
        {"amounts": lambda: {"cost": 1}},
        {"parent_session_id": 7},
        {"parent_session_id": ["a", "a"]},
        {"actual_amounts": 7},
    ],
)
def test_an_option_that_cannot_be_used_is_refused_when_it_is_given(options: Any) -> None:
    with pytest.raises((EdictumConfigError, EdictumInputError)):
        Known(Edictum(), **options)


# --- Calls inside of calls ------------------------------------------------------------------------


def test_a_call_that_a_tool_makes_belongs_to_the_caller_of_the_tool() -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=2))
    outer, inner = Known(guard), Known(guard)

    def delegate(args: Any) -> Any:
        return inner.call("inside", {}, lambda _: "ran", context=run_of("a new one"))

    assert outer.call("outside", {}, delegate, context=run_of(user="ada")).get().get() == "ran"
    assert last(guard) == ("framework", "ada")
    assert guard.session("framework").executions == 2
    assert make_call(outer, context=run_of()).denied, "both count"


def test_a_call_inside_keeps_what_its_adapter_was_given() -> None:
    guard = Edictum()
    inner = Known(guard, session_id=lambda run: "own", principal=ADA)
    Known(guard).call("outside", {}, lambda _: make_call(inner), context=run_of(user="eve"))
    assert [event.session_id for event in guard.local_sink.events] == [
        "framework", "own", "own", "framework",
    ]  # fmt: skip


def test_another_guard_does_not_know_the_call_around_it() -> None:
    guard = Edictum()
    inner = Known(guard)
    Known(Edictum()).call("outside", {}, lambda _: make_call(inner, context=run_of("its own")))
    assert last(guard)[0] == "its own"


async def test_what_a_tool_leaves_running_is_not_part_of_its_call() -> None:
    """A worker that the first user's call started would serve all others in the user's name."""
    guard = Edictum()
    adapter, ended, tasks = Known(guard), asyncio.Event(), list[asyncio.Task[Any]]()

    async def work() -> Any:
        await ended.wait()
        return await adapter.acall("later", {}, nothing, context=run_of("of another user"))

    async def nothing(args: Any) -> str:
        return "done"

    async def start(args: Any) -> str:
        tasks.append(asyncio.create_task(work()))
        return "started"

    await adapter.acall("start", {}, start, context=run_of())
    ended.set()
    await tasks[0]
    assert last(guard)[0] == "of another user"
