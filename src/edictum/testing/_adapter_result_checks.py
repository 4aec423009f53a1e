"""Checks of the adapters' suite about single calls: what runs, what is read and recorded."""

from __future__ import annotations

import threading
import time
from typing import Any

from edictum.approval.memory import InMemoryApprovalBackend
from edictum.core.contract import Verdict, precondition
from edictum.core.hooks import HookDecision, HookRegistration
from edictum.core.limits import OperationLimits
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum
from edictum.success import default_success_check
from edictum.testing._adapter_driver import (
    AdapterDriver,
    ScriptedCall,
    make_parallel_script,
    make_script,
    point,
)
from edictum.testing._adapter_tools import (
    MAX_WAIT_S,
    SECRET,
    BrokenGuard,
    SuiteTools,
    fall,
    get_last_event,
    leak,
    leak_dict,
    list_actions,
    list_open_calls,
    look,
    make_redacting_guard,
    no_forbidden,
    no_secret,
    parse_structure,
    refund,
)
from edictum.testing.fakes import FailingSink

RESULTS_TO_JUDGE: dict[str, Any] = {
    "bad dict": {"is_error": True},
    "bad text": "Error: no such file",
    "fatal text": "fatal: not a repository",
    "good dict": {"status": 500},
    "good text": "error: small letters",
    "nothing": None,
}


HALVED = ("40", "40.0", "40.00", "40.000", "40.0000")


@precondition("*", id="ask-first", effect="approve")
def ask_first(call: Any) -> Verdict:
    return Verdict.fail("A person must look at this.")


class ResultChecks(AdapterDriver):
    # --- Deny -------------------------------------------------------------------------------------

    @point("deny")
    def test_a_denied_call_does_not_run_and_the_model_reads_why(self, tools: SuiteTools) -> None:
        """Fail if what the adapter returns for a denial does not block a call."""
        guard = Edictum(contracts=[no_forbidden])
        script = make_script("look", "forbidden", "fine")
        denied, fine = self.ask(self.make_adapter(guard), [tools.make("look", look)], script)
        assert tools.ran == ["fine"], f"these bodies ran: {tools.ran}"
        assert "DENIED" in denied.text, denied
        assert "The key is forbidden." in denied.text, denied
        assert denied.failed is not False, "a denial is not marked as an error"
        assert "value of fine" in fine.text, fine
        found = list_actions(guard)
        assert found == ["call_denied", "call_allowed", "call_executed"], found

    @point("deny")
    def test_arguments_that_a_hook_rewrites_are_what_runs(self, tools: SuiteTools) -> None:
        """Fail if the tool ran with arguments that were not checked."""

        def rewrite(call: Any) -> HookDecision:
            return HookDecision.rewrite({**call.args, "key": "rewritten"})

        ran, text = ["rewritten"], "value of rewritten"
        if not self.hands_on_args:
            ran, text = [], "A hook rewrote the arguments"
        guard = Edictum(hooks=[HookRegistration("before", "*", rewrite)])
        answer = self.call_once(guard, tools.make("look", look))
        assert tools.ran == ran, f"these bodies ran: {tools.ran}"
        assert text in answer.text, answer

    # --- Redact -----------------------------------------------------------------------------------

    @point("redact")
    def test_the_model_reads_the_redacted_text(self, tools: SuiteTools) -> None:
        answer = self.call_once(make_redacting_guard(), tools.make("leak", leak))
        assert "the number of a is [GONE]" in answer.text, answer
        assert SECRET not in answer.text, f"a copy of the raw result is left: {answer}"

    @point("redact")
    def test_a_redacted_structure_stays_a_structure(self, tools: SuiteTools) -> None:
        """Fail if a result became text before it was redacted, or a copy is left."""
        redacted = {"name": "a", "deep": [{"number": "[GONE]"}], "count": 3}
        answer = self.call_once(make_redacting_guard(), tools.make("leak_dict", leak_dict))
        assert SECRET not in answer.text, answer
        assert parse_structure(answer.text) == redacted, answer

    @point("suppress")
    def test_a_suppressed_result_is_not_read(self, tools: SuiteTools) -> None:
        guard = Edictum(contracts=[no_secret("deny")])
        answer = self.call_once(guard, tools.make("leak_dict", leak_dict))
        assert SECRET not in answer.text, answer
        assert "OUTPUT SUPPRESSED" in answer.text, answer

    # --- Failure ----------------------------------------------------------------------------------

    @point("failure")
    def test_a_tool_that_raises_fails_as_it_would_without_a_guard(self, tools: SuiteTools) -> None:
        """Fail if the adapter swallows a tool's exception, or hides it from the guard."""
        guard, script = Edictum(), make_script("fall", "a")
        bare, governed = (
            self.build(adapter, [tools.make("fall", fall)], script)
            for adapter in (None, self.make_adapter(guard))
        )
        raised = [self.play(agent) for agent in (bare, governed)]
        bare_end, end = ((type(error), str(error)) for error in raised)
        assert bare_end == end, f"bare {raised[0]!r}, governed {raised[1]!r}"
        if raised[0] is None:
            before, after = self.replies(bare), self.replies(governed)
            assert before == after, f"{before} became {after}"
        event = get_last_event(guard)
        found = (event.action, event.success_source)
        assert found == ("call_failed", self.raised_as), found
        assert "no luck with a" in (event.error or ""), event.error

    @point("failure")
    def test_a_failure_that_the_framework_reports_in_its_own_way_is_one(self) -> None:
        """Fail if the adapter does not know the framework's own error flag."""
        for _ in self.each_way():
            guard, tools = Edictum(), [self.failing_tool()]
            self.play(self.build(self.make_adapter(guard), tools, make_script("report", "a")))
            event = get_last_event(guard)
            assert event.action == "call_failed", event.action
            assert event.success_source in ("framework", "exception"), event.success_source

    @point("failure")
    def test_the_model_reads_a_redacted_exception(self, tools: SuiteTools) -> None:
        """Fail if the text of an exception reaches the model around the postconditions."""

        def fall_with_secret(key: str) -> Any:
            raise ValueError(f"no {SECRET}")

        adapter = self.make_adapter(make_redacting_guard())
        made = tools.make("fall", fall_with_secret)
        agent = self.build(adapter, [made], make_script("fall", "a"))
        error = self.play(agent)
        read = str(error) if error is not None else self.replies(agent)[0].text
        assert SECRET not in read, read

    @point("success detection")
    def test_the_default_heuristic_is_the_same_as_everywhere(self, tools: SuiteTools) -> None:
        for key, value in RESULTS_TO_JUDGE.items():
            guard = Edictum()
            self.call_once(guard, tools.make("judge", RESULTS_TO_JUDGE.__getitem__), key)
            good = default_success_check("judge", value)
            found = get_last_event(guard).action
            assert found == ("call_executed" if good else "call_failed"), f"{value!r}: {found}"

    @point("success detection")
    def test_a_success_check_decides_alone_and_sees_the_raw_value(self, tools: SuiteTools) -> None:
        """Fail if the checker is not shown what the tool returned."""
        seen: list[Any] = []

        def check(name: str, value: Any, seen: list[Any] = seen) -> bool:
            seen.append((name, value))
            return False

        guard = Edictum(success_check=check)
        self.call_once(guard, tools.make("leak_dict", leak_dict))
        assert seen == [(self.guard_name.format("leak_dict"), leak_dict("a"))], seen
        event = get_last_event(guard)
        assert (event.action, event.success_source) == ("call_failed", "success_check"), event

    # --- Limits and parallel calls ----------------------------------------------------------------

    @point("limit")
    def test_a_limit_of_two_lets_two_of_six_parallel_calls_run(self, tools: SuiteTools) -> None:
        """Fail if calls are counted when they end, or share a call id."""
        guard = Edictum(limits=OperationLimits(max_tool_calls=2))
        made = tools.make("look", look, delay=lambda _: 0.05)
        script = make_parallel_script("look", *(f"k{number}" for number in range(6)))
        answers = self.ask(self.make_adapter(guard), [made], script)
        assert len(tools.ran) == 2, f"{len(tools.ran)} bodies ran"
        assert sum("DENIED" in answer.text for answer in answers) == 4, answers
        assert list_actions(guard).count("call_executed") == 2, list_actions(guard)

    @point("limit")
    def test_no_person_is_asked_about_a_refund_beyond_the_budget(self, tools: SuiteTools) -> None:
        """Fail if the amounts that a tool states do not reach the ledger with its calls."""
        backend = InMemoryApprovalBackend(True)
        guard = self._make_budget_guard(contracts=[ask_first], approval_backend=backend)
        script, made = make_script("refund", "40", "40.0", "40.00"), tools.make("refund", refund)
        answers = self.ask(self.make_adapter(guard, session_id="s"), [made], script)
        assert tools.ran == ["40", "40.0"], f"these bodies ran: {tools.ran}"
        denied = ["DENIED" in answer.text for answer in answers]
        assert denied == [False, False, True], answers
        assert len(backend.requests) == 2, f"asked {len(backend.requests)} times"
        assert guard.session("s").snapshot().amounts[""]["refunded"].spent == 80

    @point("limit")
    def test_parallel_refunds_stay_within_a_budget(self, tools: SuiteTools) -> None:
        guard = self._make_budget_guard()
        made = tools.make("refund", refund, delay=lambda _: 0.05)
        script = make_parallel_script("refund", *(f"40.{'0' * number}" for number in range(1, 6)))
        answers = self.ask(self.make_adapter(guard), [made], script)
        assert len(tools.ran) == 2, f"{len(tools.ran)} bodies ran"
        assert sum("DENIED" in answer.text for answer in answers) == 3, answers

    @point("limit")
    def test_what_a_result_says_settles_the_budget(self, tools: SuiteTools) -> None:
        """Fail if the guard is not shown what the tool returned."""
        guard = self._make_budget_guard(actual={"refunded": "result.refunded"})
        made, script = tools.make("refund", refund), make_script("refund", *HALVED)
        answers = self.ask(self.make_adapter(guard, session_id="s"), [made], script)
        assert tools.ran == list(HALVED[:4]), f"these bodies ran: {tools.ran}"
        assert "DENIED" in answers[4].text, answers
        assert guard.session("s").snapshot().amounts[""]["refunded"].spent == 80

    def _make_budget_guard(self, actual: Any = None, **options: Any) -> Edictum:
        """Return a guard with a budget of 100, of which each refund states its key."""
        entry = {"amounts": {"refunded": lambda call: float(call.args["key"])}, "actual": actual}
        bounds = OperationLimits(max_amounts={"refunded": 100})
        return Edictum(limits=bounds, tools={self.guard_name.format("refund"): entry}, **options)

    @point("parallel")
    def test_parallel_calls_are_not_mixed_up(self, tools: SuiteTools) -> None:
        """Fail if the adapter keeps the current call in one place that all calls share."""
        guard = make_redacting_guard()
        made = tools.make("leak", leak, delay=lambda key: 0.01 * (7 - int(key)))
        script = make_parallel_script("leak", *map(str, range(6)))
        answers = self.ask(self.make_adapter(guard), [made], script)
        for number, answer in enumerate(sorted(answers, key=lambda answer: answer.call_id)):
            text = f"the number of {number} is [GONE]"
            assert text in answer.text, f"call_{number} was answered with {answer}"
        assert list_open_calls(guard) == [], f"without an end: {list_open_calls(guard)}"
        assert list_actions(guard).count("call_executed") == 6, list_actions(guard)

    # --- Approval, call ids, ways -----------------------------------------------------------------

    @point("approval")
    def test_a_person_decides_about_a_call_that_needs_approval(self, tools: SuiteTools) -> None:
        for approved in (True, False):
            backend = InMemoryApprovalBackend()
            guard = Edictum(contracts=[ask_first], approval_backend=backend)
            person = threading.Thread(target=_decide_later, args=(backend, approved))
            person.daemon = True
            person.start()
            tools.ran.clear()
            answer = self.call_once(guard, tools.make("look", look))
            assert len(backend.requests) == 1, f"asked {len(backend.requests)} times"
            assert tools.ran == (["a"] if approved else []), (approved, tools.ran)
            assert ("value of a" in answer.text) is approved, (approved, answer)

    @point("call id")
    def test_the_framework_s_call_id_is_in_the_audit(self, tools: SuiteTools) -> None:
        guard, ids = Edictum(), {"call_aa": {"key": "a"}, "call_bb": {"key": "b"}}
        script = [[ScriptedCall("look", args, call_id) for call_id, args in ids.items()]]
        self.ask(self.make_adapter(guard), [tools.make("look", look)], script)
        found = {event.call_id: event.tool_args for event in guard.local_sink.events}
        assert found == ids, found

    @point("sync and async")
    def test_the_audit_is_the_same_in_every_way_to_run(self) -> None:
        trails = []
        for tools in self.each_way():
            guard, script = Edictum(contracts=[no_forbidden]), make_script("look", "a", "forbidden")
            self.ask(self.make_adapter(guard), [tools.make("look", look)], script)
            events = guard.local_sink.events
            trails.append([(it.action, it.tool_name, it.tool_args, it.reason) for it in events])
        assert all(trail == trails[0] for trail in trails), trails

    # --- Fails closed -----------------------------------------------------------------------------

    @point("fails closed")
    def test_a_contract_that_raises_refuses_the_call(self, tools: SuiteTools) -> None:
        @precondition("*", id="broken")
        def broken(call: Any) -> Verdict:
            raise RuntimeError("the contract is broken")

        answer = self.call_once(Edictum(contracts=[broken]), tools.make("look", look))
        assert tools.ran == []
        assert "DENIED" in answer.text, answer

    @point("fails closed")
    def test_an_audit_that_cannot_be_written_refuses_the_call(self, tools: SuiteTools) -> None:
        guard = Edictum(audit_sink=FailingSink(on=("call_allowed",)))
        self.call_once(guard, tools.make("look", look))
        assert tools.ran == []

    @point("fails closed")
    def test_a_tool_that_must_run_elsewhere_does_not_run_here(self, tools: SuiteTools) -> None:
        """Fail if the tool runs here anyway, or if the denial ends the run."""
        guard = Edictum(tools={self.guard_name.format("look"): {"run_in": "process"}})
        answer = self.call_once(guard, tools.make("look", look), session_id="s")
        assert tools.ran == [], "the tool ran here"
        assert "run_in: process" in answer.text, answer
        assert list_actions(guard) == ["call_denied"], list_actions(guard)
        assert guard.session("s").attempts == 1

    @point("fails closed")
    def test_wiring_says_that_tools_cannot_run_elsewhere(self) -> None:
        adapter = self.make_adapter(Edictum(tools={"look": {"run_in": "process"}}))
        for wire in (adapter.self_test, lambda: self.make_adapter(Edictum(execution="process"))):
            said = "nothing"
            try:
                wire()
            except EdictumConfigError as error:
                said = str(error)
            assert "the framework runs its tools itself" in said, said

    @point("fails closed")
    def test_a_guard_that_breaks_refuses_the_call(self, tools: SuiteTools) -> None:
        """Fail if the framework swallows an exception of the adapter and runs the tool."""
        adapter, made = self.make_adapter(BrokenGuard()), tools.make("look", look)
        self.play(self.build(adapter, [made], make_script("look", "a")))
        assert tools.ran == [], "the tool ran although the guard is broken"


def _decide_later(backend: InMemoryApprovalBackend, approved: bool) -> None:
    """Decide as a person does who needs a moment."""
    for _ in range(int(MAX_WAIT_S / 0.01)):
        time.sleep(0.01)
        if pending := backend.pending:
            time.sleep(0.03)
            backend.decide(pending[0].approval_id, approved)
            return
