"""The base of all adapters, in a loop with two hooks and by itself."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from typing import Any

import pytest
from faults import PlantedFaults
from hook_loop import HookLoopConformance, Loop, LoopAdapter

from edictum import (
    Edictum,
    EdictumConfigError,
    InMemoryApprovalBackend,
    Principal,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    Verdict,
    outcome_to_model_content,
    precondition,
)
from edictum.adapters._base import Adapter
from edictum.adapters._reply import ToolReply
from edictum.adapters._versions import check_version, release_numbers
from edictum.execution.failures import Lost, NotReturned
from edictum.harness import ToolSpec, Turn
from edictum.runtime.ticket import Ticket
from edictum.testing.adapter import ScriptedCall, leak, no_secret


class TestHookLoop(HookLoopConformance):
    """The half of the base that is for frameworks with a hook before a tool and one after it."""


class TestFaults(PlantedFaults):
    suite = TestHookLoop
    adapter = LoopAdapter


# --- The base -------------------------------------------------------------------------------------


def test_an_open_call_id_cannot_be_opened_again() -> None:
    """The framework would take the two for one; the second is refused, and the first stays open."""
    guard = Edictum()
    adapter = LoopAdapter(guard)
    first, second = (adapter.before("c1", "t", {}, call_id="c1") for _ in range(2))
    assert isinstance(first, Ticket)
    assert isinstance(second, ToolReply)
    assert "already open" in (second.text or "")
    assert adapter.after("c1", 1) is not None
    assert adapter.after("c1", 1) is None


def test_a_call_that_cannot_be_governed_is_refused_in_both_kinds_of_framework() -> None:
    adapter = LoopAdapter(Edictum())
    ran: list[Any] = []
    assert adapter.call("a/b", {}, ran.append).denied
    assert adapter.before("c1", "a/b", {}).denied  # type: ignore[union-attr]
    assert ran == []


class Deferred(Exception):
    """Stands for a framework's interrupt."""


class DeferringAdapter(LoopAdapter):
    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (Deferred,)


async def test_an_interrupt_inside_an_approval_backend_passes_through_every_way_in() -> None:
    class Interrupting(InMemoryApprovalBackend):
        async def request_approval(self, *args: Any, **options: Any) -> Any:
            raise Deferred

    @precondition("*", effect="approve")
    def ask(call: Any) -> Verdict:
        return Verdict.fail("Sure?")

    async def work(args: Any) -> None:
        raise AssertionError

    guard = Edictum(contracts=[ask], approval_backend=Interrupting())
    adapter = DeferringAdapter(guard)
    for way in (
        lambda: asyncio.to_thread(adapter.call, "t", {}, work),
        lambda: adapter.acall("t", {}, work),
        lambda: asyncio.to_thread(adapter.before, "c1", "t", {}),
        lambda: adapter.abefore("c2", "t", {}),
    ):
        with pytest.raises(Deferred):
            await way()
    assert [str(event.action) for event in guard.local_sink.events] == ["call_paused"] * 4


def test_an_exception_keeps_its_type_when_its_text_is_redacted() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            return "always password=hunter2hunter2"

    adapter = LoopAdapter(Edictum())

    def body(error: Exception) -> Any:
        def run(args: Any) -> Any:
            raise error

        return run

    plain = adapter.call("t", {}, body(KeyError("password=hunter2hunter2"))).error
    assert type(plain) is KeyError
    odd = adapter.call("t", {}, body(Odd())).error
    assert "hunter2" not in f"{plain} {odd}"


def get_error_of_dispatch(outcome: ToolOutcome) -> Any:
    return json.loads(outcome_to_model_content(outcome))["error"]


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ({"side_effect": "irreversible", "verify": "list_sent"}, "check with 'list_sent'"),
        ({"side_effect": "write"}, "find out"),
        ({"side_effect": "read"}, None),
    ],
    ids=["verify", "no verify", "read"],
)
@pytest.mark.parametrize("how", ["call", "acall"])
def test_a_timeout_says_that_its_effect_is_unknown(
    how: str, entry: dict[str, Any], advice: str | None
) -> None:
    """Or the model repeats a write that may have happened. The text is that of ``dispatch``."""
    begun: list[Any] = []

    async def send(args: Any) -> None:
        begun.append(args)
        await asyncio.Event().wait()

    for seconds in (0.05, 0.5, 5.0):
        adapter = LoopAdapter(Edictum(tools={"send": {**entry, "timeout_s": seconds}}))
        made: Any = getattr(adapter, how)("send", {}, send)
        reply = asyncio.run(made) if inspect.isawaitable(made) else made
        if begun:
            break  # else the time was over before the body began, on a busy machine
    assert isinstance(reply.outcome, ToolTimeout)
    assert reply.get() == get_error_of_dispatch(reply.outcome)
    if advice is None:
        assert "unknown" not in reply.get()
    else:
        said = f"Whether it took effect is unknown: {advice} before you call it again."
        assert reply.get().endswith(said)


def test_a_timeout_says_that_the_tool_may_still_be_running() -> None:
    outcome = ToolTimeout("c", "send", 1.0, 5, body_may_be_running=True)
    assert "It may still be running." in LoopAdapter(Edictum()).reply(outcome).get()


@pytest.mark.parametrize("error", [Lost("host-7 died"), NotReturned("cannot be pickled")])
def test_a_failure_says_that_its_effect_is_unknown(error: Exception) -> None:
    """Even when the text before it is cut; the exception keeps its type."""
    outcome = ToolFailure(
        "c", "send", str(error), exception=error, effect_unknown=True, verify_tool="list_sent"
    )
    expected = get_error_of_dispatch(outcome)
    assert expected.endswith("check with 'list_sent' before you call it again.")
    whole = LoopAdapter(Edictum()).reply(outcome).error
    assert (type(whole), str(whole)) == (type(error), expected)
    cut = LoopAdapter(Edictum(), max_result_chars=5).reply(outcome).error
    assert "shortened" in str(cut)
    assert str(cut).endswith("check with 'list_sent' before you call it again.")


async def test_an_asynchronous_callback_is_awaited() -> None:
    async def on_warn(result: Any, findings: Any) -> str:
        await asyncio.sleep(0)
        return f"{len(findings)} finding"

    async def broken(result: Any, findings: Any) -> str:
        raise RuntimeError("no")

    adapter = LoopAdapter(Edictum(contracts=[no_secret("warn")]))

    async def body(args: Any) -> Any:
        return leak("a")

    assert adapter.call("t", {}, lambda args: leak("a"), on_warn=on_warn).get() == "1 finding"
    assert (await adapter.acall("t", {}, body, on_warn=on_warn)).get() == "1 finding"
    assert (await adapter.acall("t", {}, body, on_warn=broken)).get() == leak("a")


def test_adapters_of_one_guard_have_sessions_of_their_own() -> None:
    guard = Edictum()
    first, second = LoopAdapter(guard), LoopAdapter(guard)
    assert len({first.session_id, second.session_id, guard.session_id}) == 3
    assert LoopAdapter(guard, session_id="s").session_id == "s"


def test_the_principal_can_be_changed() -> None:
    guard = Edictum(principal=Principal(user_id="guard"))
    adapter = LoopAdapter(guard)
    for principal in (None, Principal(user_id="other"), None):
        adapter.set_principal(principal)
        adapter.call("t", {}, lambda args: 1)
    found = [
        (event.principal or {})["user_id"]
        for event in guard.local_sink.events
        if event.action == "call_executed"
    ]
    assert found == ["guard", "other", "guard"]


def test_something_that_is_not_a_guard_is_refused() -> None:
    with pytest.raises(EdictumConfigError, match="is not a guard"):
        LoopAdapter("guard")  # type: ignore[arg-type]


def test_versions_are_checked_in_one_sentence() -> None:
    check_version("X", "pytest", "1", "1000")
    with pytest.raises(
        EdictumConfigError,
        match=(
            r"X needs no-such-thing>=1,<2, which is not installed\. Run: pip install"
            r" 'no-such-thing>=1,<2'"
        ),
    ):
        check_version("X", "no-such-thing", "1", "2")
    with pytest.raises(EdictumConfigError, match=r"X supports pytest>=1000,<2000; installed is \d"):
        check_version("X", "pytest", "1000", "2000")
    assert release_numbers("1.4.7rc1") == (1, 4, 7)
    assert release_numbers("1.10") > release_numbers("1.9.9")


def test_adapters_are_importable_without_their_frameworks() -> None:
    import edictum.adapters

    assert edictum.adapters.LangChainAdapter(Edictum()).session_id
    with pytest.raises(AttributeError):
        _ = edictum.adapters.NoSuchAdapter


def test_ways_of_the_loop_really_run_at_once() -> None:
    """The suite's parallel points prove nothing in a loop that runs one call after the other."""
    gate = threading.Barrier(3, timeout=60)

    def meet(key: str) -> Any:
        gate.wait()
        return key

    loop = Loop(
        [meet], [[ScriptedCall("meet", {"key": str(number)}, str(number)) for number in range(3)]]
    )
    loop.run()
    assert len(loop.read) == 3


@pytest.mark.parametrize(
    "name",
    ["a/b", "", "x" * 300, "two\nlines", 7],
    ids=["slash", "empty", "long", "lines", "number"],
)
@pytest.mark.parametrize("how", ["call", "acall", "before", "abefore"])
def test_a_call_whose_name_cannot_be_written_down_is_recorded_and_counted(
    how: str, name: Any
) -> None:
    asked: list[str] = []

    @precondition("*")
    def ask_somebody(call: Any) -> Verdict:
        asked.append(call.tool_name)
        return Verdict.pass_()

    guard = Edictum(contracts=[ask_somebody])
    adapter = Adapter(guard)
    way = getattr(adapter, how)
    given = (
        (name, {"key": "a"}, lambda _: asked.append("it ran"))
        if "call" in how
        else ("c1", name, {"key": "a"})
    )
    made = way(*given, call_id="c1")
    reply = asyncio.run(made) if inspect.isawaitable(made) else made
    assert isinstance(reply, ToolReply)
    assert reply.denied
    assert "Invalid tool_name" in str(reply.text)
    assert [
        (str(event.action), event.tool_name, event.call_id) for event in guard.local_sink.events
    ] == [("call_denied", "invalid_tool_name", "c1")]
    assert (guard.session(adapter.session_id).attempts, asked) == (1, [])


def test_arguments_that_cannot_be_read_are_recorded_and_counted() -> None:
    guard = Edictum()
    adapter = Adapter(guard)
    reply = adapter.call("look", {1: "a"}, lambda _: None)  # type: ignore[dict-item]
    assert reply.denied
    assert guard.local_sink.last().tool_name == "look"
    assert guard.session(adapter.session_id).attempts == 1


def test_a_second_ticket_under_one_id_is_recorded_once() -> None:
    guard = Edictum()
    adapter = Adapter(guard)
    assert isinstance(adapter.before("c1", "look", {}, call_id="c1"), Ticket)
    assert isinstance(adapter.before("c1", "look", {}, call_id="c1"), ToolReply)
    assert guard.session(adapter.session_id).attempts == 2


def test_an_adapter_knows_the_call_that_it_is_around_by_its_object_and_arguments() -> None:
    adapter, other, call = Adapter(Edictum()), Adapter(Edictum()), object()
    with adapter.around(call, {"key": 1}):
        assert adapter.is_around(call, {"key": 1})
        assert not adapter.is_around(call, {"key": True}), "somebody in between has changed them"
        assert not adapter.is_around(object(), {"key": 1})
        assert not other.is_around(call, {"key": 1})
    assert not adapter.is_around(call, {"key": 1}), "it is over"
    with adapter.around(None, {}):
        assert not adapter.is_around(None, {}), "a framework that does not say which call it is"


def test_amounts_of_the_adapter_win_over_those_of_the_tool() -> None:
    guard = Edictum(tools={"refund": {"amounts": {"refunded": "args.amount", "calls": 1}}})
    adapter = LoopAdapter(guard, session_id="s", amounts={"refunded": 7})
    adapter.call("refund", {"amount": 40}, lambda args: "done")
    found = guard.session("s").snapshot().amounts[""]
    assert {name: it.spent for name, it in found.items()} == {"refunded": 7, "calls": 1}


# --- Where tools run ------------------------------------------------------------------------------


class Engine:
    """Stands for a Celery engine: it must never get anything to run."""

    async def run(self, effect: Any) -> Any:
        raise AssertionError("the engine was asked")

    run_sync = run


ELSEWHERE = (
    "LoopAdapter: {} cannot be kept, because the framework runs its tools itself. Leave it out, and"
    " inside of the tool call guard.run(..., run_in=...) under another name, or run the tool with"
    " run_turn."
)


@pytest.mark.parametrize("kind", ["call", "acall", "before", "abefore"])
def test_a_tool_that_must_run_elsewhere_is_denied_in_both_kinds_of_framework(kind: str) -> None:
    guard = Edictum(tools={"parse": {"run_in": "process"}})
    adapter, ran = LoopAdapter(guard, session_id="s"), list[Any]()
    if kind in ("call", "acall"):
        reply = getattr(adapter, kind)("parse", {}, ran.append)
    else:
        reply = getattr(adapter, kind)("c1", "parse", {})
    reply = asyncio.run(reply) if kind.startswith("a") else reply
    assert isinstance(reply, ToolReply)
    assert reply.text == "DENIED: " + ELSEWHERE.format("run_in: process of 'parse'")
    assert ran == []
    assert [str(event.action) for event in guard.local_sink.events] == ["call_denied"]
    assert (guard.session("s").attempts, guard.session("s").in_flight) == (1, 0)
    with pytest.raises(EdictumConfigError, match="run_in: process of 'parse' cannot be kept"):
        adapter.self_test()


@pytest.mark.parametrize(("execution", "shown"), [("process", "'process'"), (Engine(), "'Engine'")])
def test_a_guard_that_runs_all_tools_elsewhere_is_refused(execution: Any, shown: str) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        LoopAdapter(Edictum(execution=execution))
    assert str(caught.value) == ELSEWHERE.format(f"execution={shown} of the guard")


def test_of_a_guard_that_runs_tools_elsewhere_those_that_run_here_can_be_called() -> None:
    adapter = LoopAdapter(Edictum(execution=Engine(), tools={"look": {"run_in": "inline"}}))
    assert adapter.call("look", {}, lambda args: "seen").get() == "seen"
    assert adapter.call("parse", {}, lambda args: "seen").denied


def test_a_spec_of_the_turn_that_must_run_elsewhere_denies_the_call() -> None:
    adapter = LoopAdapter(Edictum())
    spec = ToolSpec(name="parse", function=len, isolation="process")
    with adapter.in_turn(Turn(tools=[spec])):
        reply = adapter.call("parse", {}, lambda args: "seen")
    assert "run_in: process of 'parse'" in (reply.text or "")


def test_a_reload_is_heeded() -> None:
    """An adapter that was wired before the policy changed denies what it cannot keep."""
    head = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: x}\n"
    guard = Edictum.from_yaml_string(head + "tools: {parse: {run_in: thread}}\n")
    adapter = LoopAdapter(guard)
    assert adapter.call("parse", {}, lambda args: "seen").get() == "seen"
    asyncio.run(guard.reload(head + "tools: {parse: {run_in: process}}\n"))
    assert adapter.call("parse", {}, lambda args: "seen").denied


MISSPELT = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: misspelt}
contracts:
  - id: big
    type: pre
    tool: refund
    when: {args.amuont: {gt: 100}}
    then: {effect: deny, message: "Too much."}
"""


def refund(order_id: str, amount: float = 500.0) -> str:
    return f"refunded {amount}"


def test_a_contract_that_is_wrong_about_a_tool_is_refused_when_the_tool_is_wired() -> None:
    adapter = Adapter(Edictum.from_yaml_string(MISSPELT))
    with pytest.raises(EdictumConfigError, match=r"Did you mean 'args\.amount'\?"):
        adapter.check_tools({"refund": refund})
    adapter.check_tools({"other": refund})


def test_a_contract_that_is_wrong_about_a_tool_is_logged_at_its_first_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter = Adapter(Edictum.from_yaml_string(MISSPELT), session_id="s")
    for _ in range(2):
        reply = adapter.call("refund", {"order_id": "A1"}, lambda _: "ok", parameters=refund)
        assert reply.get() == "ok"
    adapter.call("a/b", {}, lambda _: "ok", parameters=refund)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [
        "contract 'big': 'args.amuont' is not an argument of 'refund'. Did you mean 'args.amount'?"
        " Known: args.order_id, args.amount."
    ]


def test_a_call_between_two_hooks_is_judged_by_its_defaults() -> None:
    right = MISSPELT.replace("amuont", "amount")
    adapter = Adapter(Edictum.from_yaml_string(right), session_id="s")
    opened = adapter.before("c1", "refund", {"order_id": "A1"}, parameters=refund)
    assert isinstance(opened, ToolReply)
    assert opened.text == "DENIED: Too much."


# --- Results that are too large for a model -------------------------------------------------------

IMAGE = {"type": "image", "data": "A" * 9_000}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 1_000, "x" * 1_000),
        (b"x" * 9_000, b"x" * 9_000),
        (IMAGE, IMAGE),
        ([IMAGE, "a caption"], [IMAGE, "a caption"]),
        ("data:image/png;base64," + "A" * 9_000, "data:image/png;base64," + "A" * 9_000),
        (["ü" * 100] * 9, ["ü" * 100] * 9),  # longer than that only where it is escaped
    ],
)
def test_what_fits_and_what_is_not_text_stays_as_it_is(value: Any, shown: Any) -> None:
    reply = LoopAdapter(Edictum(), max_result_chars=1_000).call("t", {}, lambda _: value)
    assert reply.get() == shown


def test_long_texts_in_a_structure_share_the_room() -> None:
    value = {"out": "x" * 9_000, "err": "y" * 9_000, "code": 3, "image": IMAGE}
    adapter = LoopAdapter(Edictum(), max_result_chars=20_000)
    made = adapter.call("t", {}, lambda _: value).get()
    assert made.keys() == value.keys()
    assert (made["code"], made["image"]) == (3, IMAGE)
    assert all("[shortened: 9,000 characters" in made[name] for name in ("out", "err"))
    assert len(value["out"]) == 9_000  # type: ignore[arg-type]  # the value itself is not touched


def test_the_reply_keeps_the_whole_value_and_a_long_exception_is_shortened() -> None:
    adapter = LoopAdapter(Edictum(), max_result_chars=100)

    def fall(_: Any) -> Any:
        raise ValueError("z" * 5_000)

    reply = adapter.call("t", {}, lambda _: "x" * 5_000)
    assert len(reply.value) == len(reply.outcome.value) == 5_000  # type: ignore[union-attr]
    error = adapter.call("t", {}, fall).error
    assert isinstance(error, ValueError)
    assert len(str(error)) < 300


def test_a_store_that_fails_leaves_a_shortened_result(caplog: Any) -> None:
    class Full:
        def store(self, *_: Any) -> Any:
            raise OSError("disk full")

    adapter = Adapter(Edictum(), max_result_chars=100, artifact_store=Full())
    reply = adapter.call("t", {}, lambda _: "x" * 5_000)
    assert "[shortened: 5,000 characters" in reply.get()
    assert "could not be stored" in caplog.text


@pytest.mark.parametrize("options", [{"max_result_chars": 0}, {"artifact_store": "here"}])
def test_wrong_options_for_large_results_are_refused(options: Any) -> None:
    with pytest.raises(EdictumConfigError, match=r"is not a size|is not an artifact store"):
        Adapter(Edictum(), **options)
    with pytest.raises(EdictumConfigError, match="no store to read from"):
        Adapter(Edictum()).make_reader()
    with pytest.raises(EdictumConfigError, match="LoopAdapter cannot store results"):
        LoopAdapter(Edictum(), artifact_store="here")
