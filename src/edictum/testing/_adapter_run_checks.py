"""Checks of the adapters' suite about whole runs: steering, cancelling, agents, turns, wiring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from edictum.core.call import Principal
from edictum.core.limits import OperationLimits
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum
from edictum.harness import ArtifactStore, Turn, TurnBudget
from edictum.testing._adapter_driver import (
    AdapterDriver,
    ControlFlow,
    make_script,
    point,
)
from edictum.testing._adapter_tools import (
    CLOSING,
    MAX_WAIT_S,
    SECRET,
    ReleasingSink,
    SuiteTools,
    count_executions,
    get_last_event,
    leak,
    list_actions,
    look,
    make_redacting_guard,
    name_tool,
    no_forbidden,
    no_secret,
    wait_until,
)

# Entries of the guard's tools and a turn, either of which stops a tool after so many seconds.
TimeLimit = Callable[[float], tuple[dict[str, Any], Turn | None]]


class RunChecks(AdapterDriver):
    # --- Control flow and cancellation ------------------------------------------------------------

    @point("control flow")
    def test_control_flow_exceptions_pass_through_unchanged_by_the_guard(self) -> None:
        """Fail if the adapter takes an exception that steers for a failure of the tool."""
        for flow in self.control_flow():
            for way in dict.fromkeys(way for way, _ in self.ways):
                self._check_control_flow(flow, way)

    def _check_control_flow(self, flow: ControlFlow, way: str) -> None:
        self.way = way
        guard = Edictum(limits=OperationLimits(max_tool_calls=1))
        adapter, ends = self.make_adapter(guard), []
        for wired in (None, adapter):
            agent = self.build(wired, [flow.tool], make_script("steer", "a"))
            error = self.play(agent)
            ends.append((type(error), str(error), self.ending(agent) if error is None else None))
        assert ends[0] == ends[1], f"{flow.name}: bare {ends[0]}, governed {ends[1]}"
        closing = [action for action in list_actions(guard) if action in CLOSING]
        assert closing, f"{flow.name}: the call was never closed"
        wanted = "call_paused" if flow.paused else "call_failed"
        assert set(closing) == {wanted}, f"{flow.name}: {closing}"
        counted = count_executions(guard)
        wanted_count = 0 if flow.paused else len(closing)
        assert counted == wanted_count, f"{flow.name}: counted {counted} times"

    @point("cancellation")
    def test_a_cancelled_run_has_an_end_in_the_audit(self, tools: SuiteTools) -> None:
        if self.way == "async" and tools.asynchronous:
            guard = Edictum()
            made = tools.make("look", look, delay=lambda _: 30)
            agent = self.build(self.make_adapter(guard), [made], make_script("look", "a"))
            asyncio.run(self._cancel(agent, tools))
            event = get_last_event(guard)
            found = (event.action, event.success_source)
            assert found == ("call_failed", "cancelled"), found

    async def _cancel(self, agent: Any, tools: SuiteTools) -> None:
        task = asyncio.ensure_future(self.arun(agent))
        await wait_until(lambda: bool(tools.ran) or task.done())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # --- Several agents ---------------------------------------------------------------------------

    @point("two guards")
    def test_two_agents_with_two_guards_do_not_mix(self, tools: SuiteTools) -> None:
        """Fail if the adapter registers itself for the whole process."""
        strict, lax = Edictum(contracts=[no_forbidden]), Edictum()
        script, made = (make_script("look", "forbidden"), tools.make("look", look, lambda _: 0.02))
        adapters = [self.make_adapter(guard) for guard in (strict, lax)]
        agents = [self.build(adapter, [made], script) for adapter in adapters]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self.play, agents))
        assert tools.ran == ["forbidden"], tools.ran
        assert list_actions(strict) == ["call_denied"], list_actions(strict)
        assert list_actions(lax) == ["call_allowed", "call_executed"], list_actions(lax)

    @point("sub-agents")
    def test_an_agent_that_another_one_calls_as_a_tool_is_governed_too(self) -> None:
        """Fail if the adapter loses its calls inside of a call."""
        for way in self.nested:
            self.way = way
            tools, guard = SuiteTools(way == "async"), Edictum(contracts=[no_forbidden])
            adapter = self.make_adapter(guard)
            delegate = self._make_delegate(adapter, tools)
            (answer,) = self.ask(adapter, [delegate], make_script("delegate", "a"))
            assert tools.ran == [], tools.ran
            assert "DENIED" in answer.text, answer
            found = list_actions(guard)
            assert found == ["call_allowed", "call_denied", "call_executed"], found
            sessions = {event.session_id for event in guard.local_sink.events}
            assert len(sessions) == 1, "a sub-agent has a session, and so limits, of its own"

    def _make_delegate(self, adapter: Any, tools: SuiteTools) -> Callable[..., Any]:
        """Return a tool that has another agent ask for something forbidden."""

        def make_agent() -> Any:
            made = tools.make("look", look)
            return self.build(adapter, [made], make_script("look", "forbidden"))

        def delegate(key: str) -> Any:
            agent = make_agent()
            self.run(agent)
            return self.replies(agent)[0].text

        async def adelegate(key: str) -> Any:
            agent = make_agent()
            await self.arun(agent)
            return self.replies(agent)[0].text

        return name_tool(adelegate if tools.asynchronous else delegate, "delegate")

    # --- Observe mode and findings ----------------------------------------------------------------

    @point("observe mode")
    def test_observe_mode_reports_and_changes_nothing(self, tools: SuiteTools) -> None:
        guard = Edictum(contracts=[no_forbidden, no_secret("deny")], mode="observe")
        answer = self.call_once(guard, tools.make("leak", leak), "forbidden")
        assert tools.ran == ["forbidden"]
        assert SECRET in answer.text, answer
        assert list_actions(guard)[0] == "call_would_deny", list_actions(guard)

    @point("findings callback")
    def test_findings_are_told_and_the_callback_s_result_is_read(self, tools: SuiteTools) -> None:
        told: list[Any] = []

        def on_warn(result: Any, findings: Any, told: list[Any] = told) -> Any:
            told.append((result, [finding.contract_id for finding in findings]))
            return "what the callback says"

        guard = Edictum(contracts=[no_secret("warn")])
        answer = self.call_once(guard, tools.make("leak", leak), on_warn=on_warn)
        assert told == [(leak("a"), ["no-secret"])], told
        assert "what the callback says" in answer.text, answer
        assert SECRET not in answer.text, answer

    @point("findings callback")
    def test_a_callback_that_raises_changes_nothing(self, tools: SuiteTools) -> None:
        def on_warn(result: Any, findings: Any) -> Any:
            raise RuntimeError("the callback is broken")

        guard = Edictum(contracts=[no_secret("warn")])
        answer = self.call_once(guard, tools.make("leak", leak), on_warn=on_warn)
        assert leak("a") in answer.text, answer

    # --- Timeouts and turns -----------------------------------------------------------------------

    @point("timeout")
    def test_a_tool_that_takes_too_long_times_out(self, tools: SuiteTools) -> None:
        """Fail if the framework waits for a tool that the guard has given up."""

        def limit(seconds: float) -> tuple[dict[str, Any], Turn | None]:
            return {"look": {"timeout_s": seconds}}, None

        self._check_stop(tools.asynchronous, limit)

    @point("turn")
    def test_the_deadline_of_a_turn_holds(self, tools: SuiteTools) -> None:
        """Fail if the turn that ``adapter.in_turn`` attaches does not reach the calls."""

        def limit(seconds: float) -> tuple[dict[str, Any], Turn | None]:
            budget = TurnBudget.create(timeout_s=60)
            return {}, Turn(budget=budget, tool_timeout_cap_s=seconds)

        self._check_stop(tools.asynchronous, limit)

    def _check_stop(self, asynchronous: bool, limit: TimeLimit) -> None:
        """Check that an endless body is cancelled, or left alone and its call closed."""
        # a body that is cancelled must not be released by anything else
        cancelled = self.way == "async" and asynchronous and "cancellation" not in self.cannot
        for seconds in (0.05, 0.5, 5.0):
            tools = SuiteTools(asynchronous)
            entries, turn = limit(seconds)
            guard = Edictum(tools=entries, audit_sink=None if cancelled else ReleasingSink(tools))
            adapter, made = self.make_adapter(guard), tools.make_endless("look")
            with nullcontext() if turn is None else adapter.in_turn(turn):
                (answer,) = self.ask(adapter, [made], make_script("look", "a"))
            assert "timed out" in answer.text, answer
            assert get_last_event(guard).outcome == "timeout", get_last_event(guard).outcome
            if tools.ran:
                break  # else the time was over before the body began, on a busy machine
        assert tools.ran, "the body never began"
        assert tools.ends.get(timeout=MAX_WAIT_S) != "gave up", "the adapter waited for the body"

    @point("turn")
    def test_an_output_that_is_too_large_is_read_as_a_reference(self, tools: SuiteTools) -> None:
        adapter = self.make_adapter(Edictum())
        large = tools.make("large", lambda key: {"rows": [key * 50] * 1_000})
        budget = TurnBudget.create(timeout_s=30)
        with adapter.in_turn(Turn(budget=budget, artifact_store=ArtifactStore())):
            (answer,) = self.ask(adapter, [large], make_script("large", "a"))
        assert "artifact_reference" in answer.text, answer.text[:300]
        assert len(answer.text) < 5_000, f"{len(answer.text)} characters"

    @point("streaming")
    def test_what_is_streamed_is_governed_too(self, tools: SuiteTools) -> None:
        adapter = self.make_adapter(make_redacting_guard(no_forbidden))
        script = make_script("leak", "a", "forbidden")
        agent = self.build(adapter, [tools.make("leak", leak)], script)
        streamed = self.stream(agent)
        assert tools.ran == ["a"], tools.ran
        assert SECRET not in streamed, f"the raw result was streamed: {streamed}"
        read = [
            ("[GONE]" in answer.text, "DENIED" in answer.text) for answer in self.replies(agent)
        ]
        assert read == [(True, False), (False, True)], self.replies(agent)

    # --- Configuration and wiring -----------------------------------------------------------------

    @point("principal")
    def test_the_guard_s_principal_is_used_unless_the_adapter_has_one(self) -> None:
        tools = next(self.each_way())
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
            self.call_once(guard, tools.make("look", look), **options)
            found = (get_last_event(guard).principal or {})["user_id"]
            assert found == expected, f"{options}: {found}"

    @point("session")
    def test_calls_are_counted_in_the_adapter_s_session(self) -> None:
        guard, tools = Edictum(), next(self.each_way())
        self.call_once(guard, tools.make("look", look), session_id="conversation-7")
        assert guard.session("conversation-7").executions == 1
        assert get_last_event(guard).session_id == "conversation-7"

    @point("canary")
    def test_an_adapter_that_is_wired_says_so(self) -> None:
        guard, tools = Edictum(mode="observe"), next(self.each_way())
        adapter = self.make_adapter(guard)
        assert adapter.self_test() == "governed"
        agent = self.build(adapter, [tools.make("look", look)], [[]])
        assert adapter.self_test(self.target(agent)) == "governed"
        assert guard.local_sink.events == [], "the canary was recorded as a call"

    @point("canary")
    def test_the_self_test_finds_an_adapter_without_wiring(self) -> None:
        tools = next(self.each_way())
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
