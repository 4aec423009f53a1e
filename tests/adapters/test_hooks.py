"""The half of the base that is for frameworks with a hook before a tool and one after it, in a
small agent loop of that kind.

The loop is ours, so this runs everywhere. It is also the shortest example of a driver: copy it to
see what the suite wants.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from faults import PlantedFaults

from edictum import Edictum, EdictumConfigError, Principal, Verdict, precondition
from edictum.adapters._base import Adapter
from edictum.adapters._canary import CANARY
from edictum.adapters._reply import OnWarn, ToolReply
from edictum.adapters._versions import check_version, release_numbers
from edictum.runtime.ticket import Ticket
from edictum.testing.adapter import AdapterConformance, ControlFlow, ScriptedCall, ToolAnswer


class Later(Exception):
    """How this loop puts a call off."""


class Loop:
    """Plays a script. ``before(id, name, args)`` may answer in the tool's place; ``after(id, value,
    error)`` may replace the result.
    """

    def __init__(self, tools: Any, script: Any, hooks: Any = None) -> None:
        self.tools = {tool.__name__: tool for tool in tools}
        self.script, self.hooks = script, hooks
        self.read: list[ToolAnswer] = []

    def run(self) -> None:
        for turn in self.script:
            with ThreadPoolExecutor(8) as pool:
                self.read += list(pool.map(self.call, turn))

    async def arun(self) -> None:
        for turn in self.script:
            self.read += await asyncio.gather(*map(self.acall, turn))

    def call(self, call: ScriptedCall) -> ToolAnswer:
        said = self.hooks.before(call.id, call.tool, call.args) if self.hooks else None
        if said is not None:
            return ToolAnswer(call.id, said, failed=True)
        value, error = None, None
        try:
            value = self.tools[call.tool](**call.args)
        except Exception as exc:
            error = exc
        value = self.hooks.after(call.id, value, error) if self.hooks else _settled(value, error)
        return ToolAnswer(call.id, _text(value), _failed(value))

    async def acall(self, call: ScriptedCall) -> ToolAnswer:
        said = await self.hooks.abefore(call.id, call.tool, call.args) if self.hooks else None
        if said is not None:
            return ToolAnswer(call.id, said, failed=True)
        value, error = None, None
        try:
            tool = self.tools[call.tool]
            value = await (
                tool(**call.args)
                if inspect.iscoroutinefunction(tool)
                else asyncio.to_thread(tool, **call.args)
            )
        except (Exception, asyncio.CancelledError) as exc:
            error = exc
        value = (
            await self.hooks.aafter(call.id, value, error) if self.hooks else _settled(value, error)
        )
        return ToolAnswer(call.id, _text(value), _failed(value))


def _settled(value: Any, error: BaseException | None) -> Any:
    if error is not None:
        raise error
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _failed(value: Any) -> bool:
    return isinstance(value, dict) and value.get("loop_status") == "bad"


def flag(value: Any) -> str | None:
    return "loop_status is bad" if _failed(value) else None


class LoopAdapter(Adapter):
    """What an adapter for a framework of this kind looks like."""

    requires: ClassVar = {"pytest": ("1", "1000")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (Later,)

    def as_hooks(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        adapter = self

        class Hooks:
            def before(self, call_id: str, name: str, args: dict[str, Any]) -> str | None:
                return _refusal(adapter.before(call_id, name, args, call_id=call_id, flag=flag))

            async def abefore(self, call_id: str, name: str, args: dict[str, Any]) -> str | None:
                return _refusal(
                    await adapter.abefore(call_id, name, args, call_id=call_id, flag=flag)
                )

            def after(self, call_id: str, value: Any, error: BaseException | None) -> Any:
                reply = adapter.after(call_id, value, error, on_warn=on_postcondition_warn)
                return _settled(value, error) if reply is None else reply.get()

            async def aafter(self, call_id: str, value: Any, error: BaseException | None) -> Any:
                reply = await adapter.aafter(call_id, value, error, on_warn=on_postcondition_warn)
                return _settled(value, error) if reply is None else reply.get()

        return Hooks()

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        loop = Loop([], [], self.as_hooks()) if target is None else target
        alone = Loop([], [[ScriptedCall(CANARY, {}, CANARY)]], loop.hooks)
        alone.tools = {CANARY: tool}
        alone.run()
        return alone.read[0].text


def _refusal(opened: ToolReply | Ticket) -> str | None:
    return opened.text if isinstance(opened, ToolReply) else None


class TestHooks(AdapterConformance):
    framework = "a loop with hooks"
    hands_on_args = False
    cannot = {
        "timeout": "the loop runs the tool, and offers no way to stop it",
        "turn": "the loop runs the tool, and cannot stop it at a deadline",
        "streaming": "the loop does not stream",
    }

    def noted(self, point: str) -> dict[str, str]:
        return {}

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return LoopAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Loop:
        return Loop(tools, script, None if adapter is None else adapter.as_hooks(on_warn))

    def run(self, agent: Loop) -> None:
        agent.run()

    async def arun(self, agent: Loop) -> None:
        await agent.arun()

    def replies(self, agent: Loop) -> list[ToolAnswer]:
        return agent.read

    def failing_tool(self) -> Any:
        def report(key: str) -> Any:
            return {"loop_status": "bad"}

        return report

    def control_flow(self) -> list[ControlFlow]:
        def steer(key: str) -> Any:
            raise Later("come back")

        return [ControlFlow("Later", steer)]


class TestFaults(PlantedFaults):
    suite = TestHooks
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


async def test_an_asynchronous_callback_is_awaited() -> None:
    from edictum.testing.adapter import leak, no_secret

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
