"""AdapterConformance: what every adapter must do in its framework's real loop.

A driver says how an agent is made and run in one framework; the suite plays scripts through it and
looks at four things only: which tool bodies ran, what the model read next, what was written to the
audit, and what was raised. It never looks into the adapter.

    class TestMyFramework(AdapterConformance):
        framework, distribution = "My Framework", "my-framework"
        def make_adapter(self, guard, **options): ...
        def build(self, adapter, tools, script, on_warn=None): ...
        def run(self, agent): ...
        async def arun(self, agent): ...
        def replies(self, agent): ...

A point that a framework cannot do is declared in ``cannot`` with the reason, and is reported as a
dash. Deny, redact, failure and limit cannot be declared away, nor can the call id where the
framework has one.
"""

from __future__ import annotations

import asyncio
import functools
import json
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar, Literal
from unittest import SkipTest

from edictum.approval.memory import InMemoryApprovalBackend
from edictum.core.call import Principal
from edictum.core.contract import Contract, Verdict, postcondition, precondition
from edictum.core.events import AuditEvent
from edictum.core.hooks import HookDecision, HookRegistration
from edictum.core.limits import OperationLimits
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum
from edictum.harness import ArtifactStore, Turn, TurnBudget
from edictum.success import default_success_check
from edictum.testing.fakes import FailingSink

ESSENTIAL = frozenset({"deny", "redact", "failure", "limit", "call id"})
SECRET = "123-45-6789"  # noqa: S105  # a number that must not be read
PATIENCE_S = 60.0  # only a test that fails waits so long
CLOSING = ("call_executed", "call_failed", "call_denied", "call_paused")

RESULTS_TO_JUDGE: dict[str, Any] = {
    "bad dict": {"is_error": True},
    "bad text": "Error: no such file",
    "fatal text": "fatal: not a repository",
    "good dict": {"status": 500},
    "good text": "error: small letters",
    "nothing": None,
}

# (framework, version) -> point -> test -> "pass", "fail: why" or "dash: why"; a test runner writes
# it down.
RESULTS: dict[tuple[str, str], dict[str, dict[str, str]]] = {}


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call that the scripted model makes."""

    tool: str
    args: dict[str, Any]
    id: str


Script = Sequence[Sequence[Call]]  # the model's turns; after the last one it answers with a text


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model read as the answer to one of its calls: all of it, structured copies included,
    as text.
    """

    call_id: str
    text: str
    failed: bool | None = None  # the framework's own error mark; None where it has none


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """A tool that steers its framework by raising. ``paused``: the framework will run the call
    again.
    """

    name: str
    tool: Callable[..., Any]
    paused: bool = True


class Tools:
    """The suite's tools. They write down that they ran; each can be asked for as a plain or as an
    asynchronous function.
    """

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.ran: list[str] = []
        self.most_at_once = 0
        self.release = threading.Event()  # for the bodies that ``endless`` makes
        self.ends: queue.SimpleQueue[str] = queue.SimpleQueue()  # how they ended
        self._inside = 0
        self._lock = threading.Lock()

    def make(
        self, name: str, work: Callable[[str], Any], delay: float | Callable[[str], float] = 0.0
    ) -> Callable[..., Any]:
        """A tool ``name(key: str)`` that takes ``delay`` seconds, or as many as it says for the
        key, and then does ``work(key)``.
        """

        def seconds(key: str) -> float:
            return delay(key) if callable(delay) else delay

        def tool(key: str) -> Any:
            self._enter(key)
            try:
                time.sleep(seconds(key))
                return work(key)
            finally:
                self._leave()

        async def atool(key: str) -> Any:
            self._enter(key)
            try:
                await asyncio.sleep(seconds(key))
                return work(key)
            finally:
                self._leave()

        return named(atool if self.asynchronous else tool, name)

    def endless(self, name: str) -> Callable[..., Any]:
        """A tool that ends when it is released or cancelled, and not before: an answer that came
        first was not waited for.

        It gives up after PATIENCE_S, so that an adapter that waits for it fails the test instead of
        hanging it.
        """

        def tool(key: str) -> Any:
            self.ran.append(key)
            return self._ended("released" if self.release.wait(PATIENCE_S) else "out of patience")

        async def atool(key: str) -> Any:
            self.ran.append(key)
            try:
                return self._ended(
                    "released" if await until(self.release.is_set) else "out of patience"
                )
            except asyncio.CancelledError:
                self._ended("cancelled")
                raise

        return named(atool if self.asynchronous else tool, name)

    def _ended(self, how: str) -> str:
        self.ends.put(how)
        return f"it ended: {how}"

    def _enter(self, key: str) -> None:
        with self._lock:
            self.ran.append(key)
            self._inside += 1
            self.most_at_once = max(self.most_at_once, self._inside)

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1


def named(tool: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A tool under the name and with the description that frameworks read from a function."""
    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = f"The tool {name}.\n\nArgs:\n    key: What to look for."
    return tool


def point(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Mark a test with the point it proves, and note how it went."""

    def mark(test: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(test)
        def run(self: AdapterConformance) -> None:
            noted = self.noted(name)
            if why := self.cannot.get(name):
                noted[test.__name__] = f"dash: {why}"
                raise SkipTest(why)
            try:
                test(self)
            except BaseException as exc:
                noted[test.__name__] = f"fail: {type(exc).__name__}: {str(exc)[:200]}"
                raise
            noted[test.__name__] = "pass"

        run.point = name  # type: ignore[attr-defined]
        return run

    return mark


def look(key: str) -> Any:
    return f"value of {key}"


def leak(key: str) -> Any:
    return f"the number of {key} is {SECRET}"


def leak_dict(key: str) -> Any:
    return {"name": key, "deep": [{"number": SECRET}], "count": 3}


def fall(key: str) -> Any:
    raise ValueError(f"no luck with {key}")


@precondition("*", id="no-forbidden")
def no_forbidden(call: Any) -> Verdict:
    return (
        Verdict.fail("The key is forbidden.")
        if call.args.get("key") == "forbidden"
        else Verdict.pass_()
    )


def no_secret(effect: Literal["warn", "redact", "deny"], **options: Any) -> Contract:
    """A postcondition that objects to SECRET anywhere in a result."""

    @postcondition("*", id="no-secret", effect=effect, **options)
    def check(call: Any, result: Any) -> Verdict:
        return Verdict.fail("It holds a number.") if SECRET in shown(result) else Verdict.pass_()

    return check


def shown(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def without_secret(value: Any) -> Any:
    """The value with SECRET replaced wherever it stands."""
    match value:
        case str():
            return value.replace(SECRET, "[GONE]")
        case dict():
            return {key: without_secret(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(without_secret(item) for item in value)
    return value


class ReleasingSink:
    """Lets the tools go when the end of a call is written down."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def emit(self, event: AuditEvent) -> None:
        if event.action in CLOSING:
            self._tools.release.set()


class BrokenGuard(Edictum):
    """A guard in which everything that an adapter could call raises."""

    def _broken(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("the guard is broken")

    run = run_sync = dispatch = dispatch_sync = begin = begin_sync = _broken


class AdapterConformance:
    """Subclass it in a test module as shown above, and run it with your test runner."""

    framework: ClassVar[str] = ""  # its name in the comparison table
    distribution: ClassVar[str] = ""  # whose version stands there
    cannot: ClassVar[Mapping[str, str]] = {}
    has_call_ids: ClassVar[bool] = True
    # (how the agent runs, which kind of tool): leave out what the framework itself cannot do, e.g.
    # asynchronous tools in run().
    ways: ClassVar[tuple[tuple[str, str], ...]] = (
        ("sync", "sync"),
        ("async", "sync"),
        ("async", "async"),
    )

    nested: ClassVar[tuple[str, ...]] = (
        "sync",
        "async",
    )  # the ways in which a tool may run another agent

    # False: a tool gets the model's arguments, whatever a hook of the guard makes of them. Then a
    # call that it rewrites must be refused.
    hands_on_args: ClassVar[bool] = True

    guard_name: ClassVar[str] = "{}"  # the name under which the framework shows a tool to the guard

    # How a raising tool is recorded; "framework" where tools run behind a wire, which carries
    # results with a failure flag only.
    raised_as: ClassVar[str] = "exception"

    # --- What a driver provides -------------------------------------------------------------------

    def make_adapter(self, guard: Edictum, **options: Any) -> Any:
        """The adapter; options are session_id, principal, principal_resolver."""
        raise NotImplementedError

    def build(
        self, adapter: Any, tools: Sequence[Callable[..., Any]], script: Script, on_warn: Any = None
    ) -> Any:
        """A fresh agent with these tools and a model that plays the script, wired as a newcomer
        would. ``adapter`` None: not governed.
        """
        raise NotImplementedError

    def run(self, agent: Any) -> None:
        """Run the agent to its end from synchronous code."""
        raise NotImplementedError

    async def arun(self, agent: Any) -> None:
        raise NotImplementedError

    def replies(self, agent: Any) -> list[Answer]:
        """Every answer to a tool call in the last input of the model, in the framework's own result
        type.
        """
        raise NotImplementedError

    def stream(self, agent: Any) -> str:
        """Run the agent in its streaming way, and return everything that was streamed, as text."""
        raise NotImplementedError

    def failing_tool(self) -> Callable[..., Any]:
        """A tool ``report(key: str)`` that reports failure in the framework's own way, without an
        exception reaching the guard.
        """
        raise NotImplementedError

    def control_flow(self) -> Sequence[ControlFlow]:
        """Tools ``steer(key: str)`` that raise the framework's control-flow exceptions, plain
        functions for the first way.
        """
        raise NotImplementedError

    def ending(self, agent: Any) -> Any:
        """How a run ended, as something to compare with the same run without an adapter."""
        return [(answer.call_id, answer.text) for answer in self.replies(agent)]

    def target(self, agent: Any) -> Any:
        """What ``self_test`` is given for this agent."""
        return agent

    def noted(self, point: str) -> dict[str, str]:
        """Where the results of a point are noted."""
        return RESULTS.setdefault(
            (self.framework, metadata.version(self.distribution)), {}
        ).setdefault(point, {})

    # --- Playing a script -------------------------------------------------------------------------

    def play(self, way: str, agent: Any) -> BaseException | None:
        """Run the agent; what it raised is returned, because some frameworks end a run by raising
        where others go on.
        """
        try:
            if way == "sync":
                self.run(agent)
            else:
                asyncio.run(self.arun(agent))
        except Exception as exc:
            return exc
        return None

    def each_way(self) -> Iterator[tuple[str, Tools]]:
        for way, kind in self.ways:
            yield way, Tools(kind == "async")

    def played(
        self,
        way: str,
        adapter: Any,
        tools: Sequence[Callable[..., Any]],
        script: Script,
        on_warn: Any = None,
    ) -> list[Answer]:
        """The answers that the model read; a run that raises is a failed test."""
        agent = self.build(adapter, tools, script, on_warn)
        if (error := self.play(way, agent)) is not None:
            raise AssertionError(f"{way}: the run raised {error!r}") from error
        answers = self.replies(agent)
        asked = sorted(call.id for turn in script for call in turn)
        if self.has_call_ids:
            assert sorted(answer.call_id for answer in answers) == asked, (
                f"{way}: every call has exactly one answer: {answers}"
            )
        else:
            assert len(answers) == len(asked), (
                f"{way}: every call has exactly one answer: {answers}"
            )
        return answers

    def one(
        self, way: str, guard: Edictum, tool: Callable[..., Any], key: str = "a", **options: Any
    ) -> Answer:
        """Play a script of one call and give its answer."""
        on_warn = options.pop("on_warn", None)
        adapter = self.make_adapter(guard, **options)
        return self.played(
            way, adapter, [tool], [[Call(tool.__name__, {"key": key}, "call_1")]], on_warn
        )[0]

    # --- 1 deny -----------------------------------------------------------------------------------

    @point("deny")
    def test_a_denied_call_does_not_run_and_the_model_reads_the_reason(self) -> None:
        """If this fails, the value that the adapter returns for a denial is not what blocks a call
        in this framework.
        """
        for way, tools in self.each_way():
            guard = Edictum(contracts=[no_forbidden])
            script = [
                [Call("look", {"key": "forbidden"}, "call_1")],
                [Call("look", {"key": "fine"}, "call_2")],
            ]
            answers = self.played(way, self.make_adapter(guard), [tools.make("look", look)], script)
            assert tools.ran == ["fine"], f"{way}: these bodies ran: {tools.ran}"
            assert "DENIED" in answers[0].text, f"{way}: {answers[0]}"
            assert "The key is forbidden." in answers[0].text, f"{way}: {answers[0]}"
            assert answers[0].failed is not False, f"{way}: a denial is not marked as an error"
            assert "value of fine" in answers[1].text, f"{way}: {answers[1]}"
            assert actions(guard) == [
                "call_denied",
                "call_allowed",
                "call_executed",
            ], f"{way}: {actions(guard)}"

    @point("deny")
    def test_arguments_that_a_hook_rewrites_are_what_runs(self) -> None:
        """If this fails, the tool ran with arguments that nobody checked, or an adapter that cannot
        change them did not refuse.
        """
        for way, tools in self.each_way():
            rewrite = HookRegistration(
                "before", "*", lambda call: HookDecision.rewrite({**call.args, "key": "rewritten"})
            )
            answer = self.one(way, Edictum(hooks=[rewrite]), tools.make("look", look))
            assert tools.ran == (["rewritten"] if self.hands_on_args else []), (
                f"{way}: these bodies ran: {tools.ran}"
            )
            assert (
                "value of rewritten" if self.hands_on_args else "A hook rewrote the arguments"
            ) in answer.text, f"{way}: {answer}"

    # --- 2 redact ---------------------------------------------------------------------------------

    @point("redact")
    def test_the_model_reads_the_redacted_text(self) -> None:
        """If this fails, the redacted result does not replace what the framework made of the raw
        one.
        """
        for way, tools in self.each_way():
            guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])
            answer = self.one(way, guard, tools.make("leak", leak))
            assert "the number of a is [GONE]" in answer.text, f"{way}: {answer}"
            assert SECRET not in answer.text, f"{way}: a copy of the raw result is left: {answer}"

    @point("redact")
    def test_a_redacted_structure_stays_a_structure(self) -> None:
        """If this fails, the adapter turned a result into text before it was redacted, or left a
        structured copy.
        """
        for way, tools in self.each_way():
            guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])
            answer = self.one(way, guard, tools.make("leak_dict", leak_dict))
            assert SECRET not in answer.text, f"{way}: {answer}"
            assert as_structure(answer.text) == {
                "name": "a",
                "deep": [{"number": "[GONE]"}],
                "count": 3,
            }, f"{way}: {answer}"

    @point("suppress")
    def test_a_suppressed_result_is_not_read(self) -> None:
        for way, tools in self.each_way():
            answer = self.one(
                way, Edictum(contracts=[no_secret("deny")]), tools.make("leak_dict", leak_dict)
            )
            assert SECRET not in answer.text, f"{way}: {answer}"
            assert "OUTPUT SUPPRESSED" in answer.text, f"{way}: {answer}"

    # --- 3 failure --------------------------------------------------------------------------------

    @point("failure")
    def test_a_raising_tool_is_a_failure_and_its_exception_goes_where_it_went(self) -> None:
        """If this fails, the adapter swallows a tool's exception, or does not tell the guard about
        it.
        """
        for way, tools in self.each_way():
            guard = Edictum()
            script = [[Call("fall", {"key": "a"}, "call_1")]]
            bare, governed = (
                self.build(adapter, [tools.make("fall", fall)], script)
                for adapter in (None, self.make_adapter(guard))
            )
            raised = [self.play(way, agent) for agent in (bare, governed)]
            bare_end, end = ((type(error), str(error)) for error in raised)
            assert bare_end == end, f"{way}: bare {raised[0]!r}, governed {raised[1]!r}"
            if raised[0] is None:
                assert self.replies(bare) == self.replies(governed), (
                    f"{way}: {self.replies(bare)} became {self.replies(governed)}"
                )
            event = last(guard)
            said = (event.action, event.success_source)
            assert said == (
                "call_failed",
                self.raised_as,
            ), f"{way}: {event.action} {event.success_source}"
            assert "no luck with a" in (event.error or ""), f"{way}: {event.error}"

    @point("failure")
    def test_a_failure_that_the_framework_reports_in_its_own_way_is_one(self) -> None:
        """If this fails, the adapter does not know the framework's own error flag."""
        for way, _ in self.ways:
            guard = Edictum()
            agent = self.build(
                self.make_adapter(guard),
                [self.failing_tool()],
                [[Call("report", {"key": "a"}, "call_1")]],
            )
            self.play(way, agent)
            event = last(guard)
            assert event.action == "call_failed", f"{way}: {event.action}"
            assert event.success_source in (
                "framework",
                "exception",
            ), f"{way}: {event.success_source}"

    @point("failure")
    def test_a_redacted_exception_is_read_redacted(self) -> None:
        """If this fails, the text of an exception reaches the model around the postconditions."""

        def fall_with_secret(key: str) -> Any:
            raise ValueError(f"no {SECRET}")

        for way, tools in self.each_way():
            guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])
            agent = self.build(
                self.make_adapter(guard),
                [tools.make("fall", fall_with_secret)],
                [[Call("fall", {"key": "a"}, "call_1")]],
            )
            error = self.play(way, agent)
            read = str(error) if error is not None else self.replies(agent)[0].text
            assert SECRET not in read, f"{way}: {read}"

    @point("success detection")
    def test_the_default_heuristic_is_the_same_as_everywhere(self) -> None:
        """If this fails, the guard judges what the framework made of a result, not the result."""
        for way, tools in self.each_way():
            for key, value in RESULTS_TO_JUDGE.items():
                guard = Edictum()
                self.one(way, guard, tools.make("judge", RESULTS_TO_JUDGE.__getitem__), key)
                expected = (
                    "call_executed" if default_success_check("judge", value) else "call_failed"
                )
                assert last(guard).action == expected, (
                    f"{way}: {value!r} was recorded as {last(guard).action}"
                )

    @point("success detection")
    def test_a_success_check_replaces_everything_and_sees_the_raw_value(self) -> None:
        """If this fails, the checker is shown text, or the framework's wrapping, instead of what
        the tool returned.
        """
        for way, tools in self.each_way():
            seen: list[Any] = []

            def check(name: str, value: Any, seen: list[Any] = seen) -> bool:
                seen.append((name, value))
                return False

            guard = Edictum(success_check=check)
            self.one(way, guard, tools.make("leak_dict", leak_dict))
            assert seen == [(self.guard_name.format("leak_dict"), leak_dict("a"))], (
                f"{way}: it saw {seen}"
            )
            assert (last(guard).action, last(guard).success_source) == (
                "call_failed",
                "success_check",
            ), f"{way}: {last(guard)}"

    # --- 4 limit ----------------------------------------------------------------------------------

    @point("limit")
    def test_a_limit_of_two_lets_two_of_six_parallel_calls_run(self) -> None:
        """If this fails, calls are counted when they end, or the adapter keeps calls apart by
        something that they share.
        """
        for way, tools in self.each_way():
            guard = Edictum(limits=OperationLimits(max_tool_calls=2))
            script = [
                [Call("look", {"key": f"k{number}"}, f"call_{number}") for number in range(6)]
            ]
            answers = self.played(
                way, self.make_adapter(guard), [tools.make("look", look, delay=0.05)], script
            )
            assert len(tools.ran) == 2, f"{way}: {len(tools.ran)} bodies ran"
            assert sum("DENIED" in answer.text for answer in answers) == 4, f"{way}: {answers}"
            assert actions(guard).count("call_executed") == 2, f"{way}: {actions(guard)}"

    @point("parallel")
    def test_parallel_calls_are_not_mixed_up(self) -> None:
        """If this fails, the adapter keeps the current call in one place that all calls share."""
        for way, tools in self.each_way():
            guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])
            made = tools.make("leak", leak, delay=lambda key: 0.01 * (7 - int(key)))
            script = [[Call("leak", {"key": str(number)}, f"call_{number}") for number in range(6)]]
            answers = self.played(way, self.make_adapter(guard), [made], script)
            for number, answer in enumerate(sorted(answers, key=lambda answer: answer.call_id)):
                assert f"the number of {number} is [GONE]" in answer.text, (
                    f"{way}: call_{number} was answered with {answer}"
                )
            assert open_calls(guard) == [], f"{way}: calls without an end: {open_calls(guard)}"
            assert actions(guard).count("call_executed") == 6, f"{way}: {actions(guard)}"

    # --- 5 approval -------------------------------------------------------------------------------

    @point("approval")
    def test_approval_is_asked_waited_for_and_obeyed(self) -> None:
        @precondition("*", id="ask-first", effect="approve")
        def ask_first(call: Any) -> Verdict:
            return Verdict.fail("Somebody must look at this.")

        for way, tools in self.each_way():
            for answer in (True, False):
                backend = InMemoryApprovalBackend()
                threading.Thread(target=_decide_later, args=(backend, answer), daemon=True).start()
                tools.ran.clear()
                read = self.one(
                    way,
                    Edictum(contracts=[ask_first], approval_backend=backend),
                    tools.make("look", look),
                )
                assert len(backend.requests) == 1, (
                    f"{way}: {len(backend.requests)} people were asked"
                )
                assert tools.ran == (["a"] if answer else []), (
                    f"{way}: answered {answer}, ran {tools.ran}"
                )
                assert ("value of a" in read.text) is answer, (
                    f"{way}: answered {answer}, the model read {read}"
                )

    # --- 6 call id --------------------------------------------------------------------------------

    @point("call id")
    def test_the_framework_s_call_id_is_in_the_audit(self) -> None:
        for way, tools in self.each_way():
            guard = Edictum()
            script = [
                [Call("look", {"key": "a"}, "call_aa"), Call("look", {"key": "b"}, "call_bb")]
            ]
            self.played(way, self.make_adapter(guard), [tools.make("look", look)], script)
            found = {event.call_id: event.tool_args for event in guard.local_sink.events}
            assert found == {"call_aa": {"key": "a"}, "call_bb": {"key": "b"}}, f"{way}: {found}"

    # --- 7 sync and async -------------------------------------------------------------------------

    @point("sync and async")
    def test_the_audit_is_the_same_in_every_way_to_run(self) -> None:
        trails = []
        for way, tools in self.each_way():
            guard = Edictum(contracts=[no_forbidden])
            script = [
                [Call("look", {"key": "a"}, "call_1")],
                [Call("look", {"key": "forbidden"}, "call_2")],
            ]
            self.played(way, self.make_adapter(guard), [tools.make("look", look)], script)
            trails.append(
                [
                    (event.action, event.tool_name, event.tool_args, event.reason)
                    for event in guard.local_sink.events
                ]
            )
        assert all(trail == trails[0] for trail in trails), trails

    # --- 8 fails closed ---------------------------------------------------------------------------

    @point("fails closed")
    def test_a_contract_that_raises_refuses_the_call(self) -> None:
        @precondition("*", id="broken")
        def broken(call: Any) -> Verdict:
            raise RuntimeError("the contract is broken")

        for way, tools in self.each_way():
            answer = self.one(way, Edictum(contracts=[broken]), tools.make("look", look))
            assert tools.ran == [], way
            assert "DENIED" in answer.text, f"{way}: {answer}"

    @point("fails closed")
    def test_an_audit_that_cannot_be_written_refuses_the_call(self) -> None:
        for way, tools in self.each_way():
            self.one(
                way, Edictum(audit_sink=FailingSink(on=("call_allowed",))), tools.make("look", look)
            )
            assert tools.ran == [], way

    @point("fails closed")
    def test_a_guard_that_breaks_refuses_the_call(self) -> None:
        """If this fails, the framework swallows an exception of the adapter and runs the tool."""
        for way, tools in self.each_way():
            agent = self.build(
                self.make_adapter(BrokenGuard()),
                [tools.make("look", look)],
                [[Call("look", {"key": "a"}, "call_1")]],
            )
            self.play(way, agent)
            assert tools.ran == [], f"{way}: the tool ran although the guard is broken"

    # --- 9 control flow ---------------------------------------------------------------------------

    @point("control flow")
    def test_control_flow_exceptions_pass_through_untouched(self) -> None:
        """If this fails, the adapter takes an exception by which the framework steers for a failure
        of the tool.
        """
        for flow in self.control_flow():
            for way in dict.fromkeys(way for way, _ in self.ways):
                guard = Edictum(limits=OperationLimits(max_tool_calls=1))
                adapter = self.make_adapter(guard)
                script = [[Call("steer", {"key": "a"}, "call_1")]]
                ends = []
                for wired in (None, adapter):
                    agent = self.build(wired, [flow.tool], script)
                    error = self.play(way, agent)
                    ends.append(
                        (type(error), str(error), self.ending(agent) if error is None else None)
                    )
                assert ends[0] == ends[1], f"{flow.name}, {way}: bare {ends[0]}, governed {ends[1]}"
                closing = [action for action in actions(guard) if action in CLOSING]
                assert closing == ["call_paused" if flow.paused else "call_failed"] * len(
                    closing
                ), f"{flow.name}, {way}: {closing}"
                assert closing, f"{flow.name}, {way}: the call was never closed"
                counted = guard.session(adapter.session_id).executions
                assert counted == (0 if flow.paused else len(closing)), (
                    f"{flow.name}, {way}: counted {counted} times"
                )

    # --- 10 cancellation --------------------------------------------------------------------------

    @point("cancellation")
    def test_a_cancelled_run_is_recorded(self) -> None:
        """If this fails, a call whose run was cancelled has no end in the audit."""
        for way, kind in self.ways:
            if (way, kind) != ("async", "async"):
                continue
            tools, guard = Tools(asynchronous=True), Edictum()
            agent = self.build(
                self.make_adapter(guard),
                [tools.make("look", look, delay=30)],
                [[Call("look", {"key": "a"}, "call_1")]],
            )
            asyncio.run(self._cancel(agent, tools))
            event = last(guard)
            assert (event.action, event.success_source) == (
                "call_failed",
                "cancelled",
            ), f"{event.action} {event.success_source}"

    async def _cancel(self, agent: Any, tools: Tools) -> None:
        task = asyncio.ensure_future(self.arun(agent))
        await until(lambda: bool(tools.ran) or task.done())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # --- 11 two guards ----------------------------------------------------------------------------

    @point("two guards")
    def test_two_agents_with_two_guards_do_not_mix(self) -> None:
        """If this fails, the adapter registers itself for the whole process."""
        for way, tools in self.each_way():
            strict, lax = Edictum(contracts=[no_forbidden]), Edictum()
            script = [[Call("look", {"key": "forbidden"}, "call_1")]]
            made = tools.make("look", look, delay=0.02)
            agents = [
                self.build(self.make_adapter(guard), [made], script) for guard in (strict, lax)
            ]
            _together([functools.partial(self.play, way, agent) for agent in agents])
            assert tools.ran == ["forbidden"], f"{way}: {tools.ran}"
            assert (actions(strict), actions(lax)) == (
                ["call_denied"],
                ["call_allowed", "call_executed"],
            ), way

    @point("sub-agents")
    def test_an_agent_that_another_one_calls_as_a_tool_is_governed_too(self) -> None:
        """If this fails, the adapter loses its calls inside of a call."""
        for way in self.nested:
            tools, guard = Tools(way == "async"), Edictum(contracts=[no_forbidden])
            adapter = self.make_adapter(guard)
            answers = self.played(
                way,
                adapter,
                [self._delegate(adapter, tools)],
                [[Call("delegate", {"key": "a"}, "call_1")]],
            )
            assert tools.ran == [], f"{way}: {tools.ran}"
            assert "DENIED" in answers[0].text, f"{way}: {answers[0]}"
            assert actions(guard) == [
                "call_allowed",
                "call_denied",
                "call_executed",
            ], f"{way}: {actions(guard)}"

    def _delegate(self, adapter: Any, tools: Tools) -> Callable[..., Any]:
        """A tool that lets another agent ask for something forbidden, and returns what that one
        read.
        """

        def inner() -> Any:
            return self.build(
                adapter,
                [tools.make("look", look)],
                [[Call("look", {"key": "forbidden"}, "call_2")]],
            )

        def delegate(key: str) -> Any:
            agent = inner()
            self.run(agent)
            return self.replies(agent)[0].text

        async def adelegate(key: str) -> Any:
            agent = inner()
            await self.arun(agent)
            return self.replies(agent)[0].text

        return named(adelegate if tools.asynchronous else delegate, "delegate")

    # --- The rest ---------------------------------------------------------------------------------

    @point("observe mode")
    def test_observe_mode_reports_and_changes_nothing(self) -> None:
        for way, tools in self.each_way():
            guard = Edictum(contracts=[no_forbidden, no_secret("deny")], mode="observe")
            answer = self.one(way, guard, tools.make("leak", leak), "forbidden")
            assert tools.ran == ["forbidden"], way
            assert SECRET in answer.text, f"{way}: {answer}"
            assert actions(guard)[0] == "call_would_deny", f"{way}: {actions(guard)}"

    @point("findings callback")
    def test_findings_are_told_and_the_callback_s_result_is_read(self) -> None:
        for way, tools in self.each_way():
            told: list[Any] = []

            def on_warn(result: Any, findings: Any, told: list[Any] = told) -> Any:
                told.append((result, [finding.contract_id for finding in findings]))
                return "what the callback says"

            answer = self.one(
                way,
                Edictum(contracts=[no_secret("warn")]),
                tools.make("leak", leak),
                on_warn=on_warn,
            )
            assert told == [(leak("a"), ["no-secret"])], f"{way}: {told}"
            assert "what the callback says" in answer.text, f"{way}: {answer}"
            assert SECRET not in answer.text, f"{way}: {answer}"

    @point("findings callback")
    def test_a_callback_that_raises_changes_nothing(self) -> None:
        def on_warn(result: Any, findings: Any) -> Any:
            raise RuntimeError("the callback is broken")

        for way, tools in self.each_way():
            answer = self.one(
                way,
                Edictum(contracts=[no_secret("warn")]),
                tools.make("leak", leak),
                on_warn=on_warn,
            )
            assert leak("a") in answer.text, f"{way}: {answer}"

    @point("timeout")
    def test_a_tool_that_takes_too_long_times_out(self) -> None:
        """If this fails, the framework waits for a tool that the guard has given up."""
        for way, kind in self.ways:
            self._is_stopped(way, kind, lambda seconds: ({"look": {"timeout_s": seconds}}, None))

    @point("turn")
    def test_the_deadline_of_a_turn_holds(self) -> None:
        """If this fails, the turn that ``adapter.in_turn`` attaches does not reach the calls."""
        for way, kind in self.ways:
            self._is_stopped(
                way,
                kind,
                lambda seconds: (
                    {},
                    Turn(budget=TurnBudget.create(timeout_s=60), tool_timeout_cap_s=seconds),
                ),
            )

    def _is_stopped(
        self, way: str, kind: str, limit: Callable[[float], tuple[dict[str, Any], Turn | None]]
    ) -> None:
        """A body that does not end by itself is answered for: it is cancelled, or left alone and
        its call closed while it runs.
        """
        cancelled = (way, kind) == (
            "async",
            "async",
        ) and "cancellation" not in self.cannot  # then nobody else lets the body go
        for seconds in (0.05, 0.5, 5.0):
            tools = Tools(kind == "async")
            entries, turn = limit(seconds)
            guard = Edictum(tools=entries, audit_sink=None if cancelled else ReleasingSink(tools))
            adapter = self.make_adapter(guard)
            with nullcontext() if turn is None else adapter.in_turn(turn):
                (answer,) = self.played(
                    way, adapter, [tools.endless("look")], [[Call("look", {"key": "a"}, "call_1")]]
                )
            assert "timed out" in answer.text, f"{way}: {answer}"
            assert last(guard).outcome == "timeout", f"{way}: {last(guard).outcome}"
            if tools.ran:
                # on a busy machine the time may be over before the body has begun, which shows
                # nothing
                break
        assert tools.ran, f"{way}: the body never began"
        assert tools.ends.get(timeout=PATIENCE_S) != "out of patience", (
            f"{way}: nobody stopped waiting"
        )

    @point("turn")
    def test_an_output_that_is_too_large_is_read_as_a_reference(self) -> None:
        for way, tools in self.each_way():
            adapter = self.make_adapter(Edictum())
            large = tools.make("large", lambda key: {"rows": [key * 50] * 1_000})
            with adapter.in_turn(
                Turn(budget=TurnBudget.create(timeout_s=30), artifact_store=ArtifactStore())
            ):
                (answer,) = self.played(
                    way, adapter, [large], [[Call("large", {"key": "a"}, "call_1")]]
                )
            assert "artifact_reference" in answer.text, f"{way}: {answer.text[:300]}"
            assert len(answer.text) < 5_000, f"{way}: {len(answer.text)} characters"

    @point("streaming")
    def test_what_is_streamed_is_governed_too(self) -> None:
        for _, kind in self.ways:
            tools = Tools(kind == "async")
            guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
            script = [
                [Call("leak", {"key": "a"}, "call_1")],
                [Call("leak", {"key": "forbidden"}, "call_2")],
            ]
            agent = self.build(self.make_adapter(guard), [tools.make("leak", leak)], script)
            streamed = self.stream(agent)
            assert tools.ran == ["a"], f"{kind} tools: {tools.ran}"
            assert SECRET not in streamed, f"{kind} tools: the raw result was streamed: {streamed}"
            assert [
                ("[GONE]" in answer.text, "DENIED" in answer.text) for answer in self.replies(agent)
            ] == [(True, False), (False, True)]

    @point("principal")
    def test_the_guard_s_principal_is_used_unless_the_adapter_has_one(self) -> None:
        way, tools = next(self.each_way())
        own, other, resolved = (
            Principal(user_id=name) for name in ("guard", "adapter", "resolver")
        )
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "guard"),
            ({"principal": other}, "adapter"),
            ({"principal": other, "principal_resolver": lambda *_: resolved}, "resolver"),
        ]
        for options, expected in cases:
            guard = Edictum(principal=own)
            self.one(way, guard, tools.make("look", look), **options)
            assert (last(guard).principal or {})["user_id"] == expected, (
                f"{options}: {last(guard).principal}"
            )

    @point("session")
    def test_calls_are_counted_in_the_adapter_s_session(self) -> None:
        way, tools = next(self.each_way())
        guard = Edictum()
        self.one(way, guard, tools.make("look", look), session_id="conversation-7")
        assert guard.session("conversation-7").executions == 1
        assert last(guard).session_id == "conversation-7"

    @point("canary")
    def test_an_adapter_that_is_wired_says_so(self) -> None:
        _, tools = next(self.each_way())
        guard = Edictum(mode="observe")
        adapter = self.make_adapter(guard)
        assert adapter.self_test() == "governed"
        assert (
            adapter.self_test(self.target(self.build(adapter, [tools.make("look", look)], [[]])))
            == "governed"
        )
        assert guard.local_sink.events == [], "the canary is nobody's call"

    @point("canary")
    def test_an_adapter_that_is_not_wired_is_noticed(self) -> None:
        """If this fails, ``self_test`` reports "governed" for an agent whose calls do not pass
        through the adapter.
        """
        _, tools = next(self.each_way())
        adapter, other = self.make_adapter(Edictum()), self.make_adapter(Edictum())
        for wired in (None, other):
            target = self.target(self.build(wired, [tools.make("look", look)], [[]]))
            try:
                said = adapter.self_test(target)
            except EdictumConfigError:
                continue
            raise AssertionError(
                f"self_test() said {said!r} about an agent that this adapter does not govern"
            )

    def test_nothing_essential_is_declared_away(self) -> None:
        away = set(self.cannot) & ESSENTIAL
        assert away <= (set() if self.has_call_ids else {"call id"}), (
            f"cannot be declared away: {away}"
        )
        unknown = set(self.cannot) - set(points())
        assert not unknown, f"no such points: {unknown}"

    def test_no_test_of_the_suite_is_replaced(self) -> None:
        for name, test in vars(AdapterConformance).items():
            if name.startswith("test_"):
                assert getattr(type(self), name) is test, (
                    f"{name} is replaced; declare in `cannot` what the framework cannot do"
                )


# --- Reading what happened ------------------------------------------------------------------------


def actions(guard: Edictum) -> list[str]:
    return [str(event.action) for event in guard.local_sink.events]


def last(guard: Edictum) -> AuditEvent:
    events = guard.local_sink.events
    assert events, "nothing was recorded: the call did not pass through the guard"
    return events[-1]


def open_calls(guard: Edictum) -> list[str]:
    """The calls that were allowed and never closed."""
    events = guard.local_sink.events
    ended = {
        event.call_id
        for event in events
        if event.action in ("call_executed", "call_failed", "call_paused")
    }
    return [
        event.call_id
        for event in events
        if event.action == "call_allowed" and event.call_id not in ended
    ]


def as_structure(text: str) -> Any:
    """The first JSON object in a text."""
    start = text.find('{"name"')
    assert start >= 0, f"no JSON object in {text!r}"
    return json.JSONDecoder().raw_decode(text[start:])[0]


def _decide_later(backend: InMemoryApprovalBackend, answer: bool) -> None:
    """A person who needs a moment."""
    for _ in range(int(PATIENCE_S / 0.01)):
        time.sleep(0.01)
        if pending := backend.pending:
            time.sleep(0.03)
            backend.decide(pending[0].approval_id, answer)
            return


async def until(holds: Callable[[], bool]) -> bool:
    """Wait for something to come true; False: it did not within PATIENCE_S."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return holds()


def _together(works: Sequence[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tests() -> list[tuple[str, Callable[[Any], None]]]:
    return [
        (name, test) for name, test in vars(AdapterConformance).items() if name.startswith("test_")
    ]


def points() -> list[str]:
    """The points of the suite in their order: the columns of the comparison table."""
    return list(dict.fromkeys(test.point for _, test in tests() if hasattr(test, "point")))


def failures(suite: AdapterConformance, only: Sequence[str] = ()) -> dict[str, str]:
    """Run the suite (or some of its points) and return what failed, by point: for tests of the
    suite itself.
    """
    found: dict[str, str] = {}
    for name, test in tests():
        about = getattr(test, "point", name)
        if only and about not in only:
            continue
        try:
            test(suite)
        except SkipTest:
            continue
        except Exception:
            found[about] = traceback.format_exc()
    return found
