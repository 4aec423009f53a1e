"""A person decides: four ends, bound to one call, and a terminal that does not lose answers."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edictum import (
    ApprovalDecision,
    ApprovalRequest,
    ApprovalStatus,
    Edictum,
    EdictumConfigError,
    InMemoryApprovalBackend,
    LocalApprovalBackend,
    OperationLimits,
    Principal,
    ToolCall,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    precondition,
)
from edictum.core.lifecycle.approval import approval_digest
from edictum.testing import ApprovalConformance, ScriptedApprovalBackend
from support.guards import approval_contract, list_actions
from support.waiting import wait_in_loop

SOON = 0.05


# --- The four ends --------------------------------------------------------------------------------


async def test_granted() -> None:
    """The call runs; the grant stands for call_allowed."""
    guard = Edictum(contracts=[approval_contract()], approval_backend=InMemoryApprovalBackend(True))
    assert await guard.run("t", {}, lambda: "done") == "done"
    assert list_actions(guard) == [
        "call_approval_requested",
        "call_approval_granted",
        "call_executed",
    ]


async def test_denied() -> None:
    """The person's reason is the reason."""
    decision = ApprovalDecision(False, "ann", "too risky", ApprovalStatus.DENIED)
    guard = Edictum(
        contracts=[approval_contract()], approval_backend=InMemoryApprovalBackend(decision)
    )
    outcome = await guard.dispatch("t", {}, lambda: "done")
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.details, outcome.decision_source, outcome.decision_name) == (
        "write_denied",
        "too risky",
        "precondition",
        "ask",
    )
    assert list_actions(guard) == ["call_approval_requested", "call_approval_denied"]
    assert guard.local_sink.last().outcome == "denied"


async def test_denied_without_a_reason_says_that_a_person_refused() -> None:
    """A model that reads the question would answer it."""
    guard = Edictum(
        contracts=[approval_contract()], approval_backend=InMemoryApprovalBackend(False)
    )
    assert (await guard.dispatch("t", {}, lambda: 1)).details == "A person refused: are you sure?"
    assert guard.local_sink.last().reason == "A person refused: are you sure?"


async def test_expired() -> None:
    """Nobody answered: no."""
    guard = Edictum(
        contracts=[approval_contract(timeout=SOON)], approval_backend=InMemoryApprovalBackend()
    )
    outcome = await guard.dispatch("t", {}, lambda: "done")
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "write_denied"
    assert list_actions(guard) == ["call_approval_requested", "call_approval_timeout"]
    assert guard.local_sink.last().outcome == "denied"


async def test_expired_where_the_contract_says_that_silence_is_consent() -> None:
    """The event still says that nobody decided."""
    guard = Edictum(
        contracts=[approval_contract(timeout=SOON, timeout_effect="allow")],
        approval_backend=InMemoryApprovalBackend(),
    )
    assert isinstance(await guard.dispatch("t", {}, lambda: "done"), ToolExecutionResult)
    assert list_actions(guard) == [
        "call_approval_requested",
        "call_approval_timeout",
        "call_executed",
    ]


async def test_withdrawn_by_the_backend() -> None:
    """Its own end."""
    backend = ScriptedApprovalBackend(
        decision=ApprovalDecision(False, status=ApprovalStatus.WITHDRAWN)
    )
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    assert (await guard.dispatch("t", {}, lambda: 1)).details == "The request was withdrawn."
    assert list_actions(guard)[-1] == "call_approval_withdrawn"


async def test_withdrawn_because_the_caller_gave_up() -> None:
    """A backend without ``withdraw`` is fine, too."""

    class Old:
        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def request_approval(self, *args: Any, **kwargs: Any) -> ApprovalRequest:
            return ApprovalRequest("a-1", "t", {}, "sure?", 1)

        async def wait_for_decision(
            self, approval_id: str, timeout: float | None = None
        ) -> ApprovalDecision:
            self.asked.set()
            await asyncio.Event().wait()
            raise AssertionError("never")

    backend = Old()
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await backend.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list_actions(guard) == ["call_approval_requested", "call_approval_withdrawn"]


async def test_nothing_is_held_while_a_person_thinks() -> None:
    """Other calls of the session go on."""
    backend = InMemoryApprovalBackend()
    contract = approval_contract("slow")
    guard = Edictum(
        contracts=[contract], approval_backend=backend, limits=OperationLimits(max_tool_calls=1)
    )
    task = asyncio.ensure_future(guard.dispatch("slow", {}, lambda: 1))
    await wait_in_loop(lambda: backend.pending)
    assert guard.session().in_flight == 0
    assert isinstance(await guard.dispatch("fast", {}, lambda: 1), ToolExecutionResult)
    backend.decide(backend.pending[0].approval_id, True)
    assert isinstance(await task, ToolDenied)


async def test_several_contracts_that_ask_are_one_question_on_the_strictest_terms() -> None:
    """The shortest time, and consent by silence only if all agree."""
    backend = InMemoryApprovalBackend(True)
    contracts = [
        approval_contract(timeout=60, timeout_effect="allow"),
        approval_contract(timeout=30),
        approval_contract(timeout=90, timeout_effect="allow"),
    ]
    await Edictum(contracts=contracts, approval_backend=backend).dispatch("t", {}, lambda: 1)
    assert [(request.timeout, request.timeout_effect) for request in backend.requests] == [
        (30, "deny")
    ]


# --- What an approval is bound to -----------------------------------------------------------------


async def test_a_request_carries_what_was_asked() -> None:
    """Tool, arguments, message, principal, session, and the digest that binds the answer."""
    backend = InMemoryApprovalBackend(True)
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=backend,
        principal=Principal(user_id="u"),
        policy_version="v1",
    )
    await guard.dispatch("t", {"x": [1]}, lambda x: 1, session_id="s", call_id="c")
    request = backend.requests[0]
    assert (request.tool_name, request.tool_args, request.message, request.session_id) == (
        "t",
        {"x": [1]},
        "are you sure?",
        "s",
    )
    assert request.principal["user_id"] == "u"
    assert request.metadata["contract"] == "ask"
    assert request.metadata["call_id"] == "c"
    assert len(request.digest) == 64


def digest(**changes: Any) -> str:
    fields: dict[str, Any] = {
        "tool": "t",
        "args": {"a": 1, "b": [1, {"c": 2}]},
        "principal": Principal(user_id="u"),
        "version": "v1",
    } | changes
    return approval_digest(
        ToolCall(fields["tool"], fields["args"], principal=fields["principal"]), fields["version"]
    )


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "t2"},
        {"args": {"a": 2, "b": [1, {"c": 2}]}},
        {"args": {"a": 1, "b": [1, {"c": 3}]}},
        {"args": {"a": "1", "b": [1, {"c": 2}]}},
        {"args": {}},
        {"principal": None},
        {"principal": Principal(user_id="v")},
        {"principal": Principal(user_id="u", claims={"x": 1})},
        {"version": "v2"},
    ],
)
def test_the_digest_changes_with_everything_it_binds(change: dict[str, Any]) -> None:
    """Tool, each argument and its type, principal, policy version."""
    assert digest(**change) != digest()


def test_the_digest_is_the_same_for_the_same_call() -> None:
    """Whatever the order in which the arguments were written."""
    assert digest() == digest()
    assert digest(args={"b": [1, {"c": 2}], "a": 1}) == digest()


@pytest.mark.parametrize(("given", "runs"), [(None, True), ("", False), ("0" * 64, False)])
async def test_an_answer_for_another_call_does_not_count(given: str | None, runs: bool) -> None:
    """A backend that keeps requests elsewhere returns their digest, and it is checked."""
    decision = ApprovalDecision(True, "carol", status=ApprovalStatus.APPROVED, digest=given)
    guard = Edictum(
        contracts=[approval_contract()], approval_backend=ScriptedApprovalBackend(decision=decision)
    )
    outcome = await guard.dispatch("t", {}, lambda: 1)
    assert isinstance(outcome, ToolExecutionResult if runs else ToolDenied)
    if not runs:
        assert outcome.details == "The approval is for another call."
        assert list_actions(guard)[-1] == "call_approval_void"
        assert guard.local_sink.last().approver is None


async def test_the_right_digest_counts() -> None:
    """The in-memory backend returns it with its answers."""
    backend = InMemoryApprovalBackend()
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await wait_in_loop(lambda: backend.pending)
    backend.decide(backend.pending[0].approval_id, True, approver="ann")
    assert isinstance(await task, ToolExecutionResult)
    assert guard.local_sink.filter("call_approval_granted")[0].approver == "ann"


BUNDLE = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: asks}}
defaults: {{mode: enforce}}
contracts:
  - id: ask
    type: pre
    tool: "*"
    when: {{tool.name: {{equals: t}}}}
    then: {{effect: approve, message: "{message}"}}
"""


async def test_an_answer_given_under_another_policy_does_not_count() -> None:
    """The policy changed while the person thought."""
    backend = InMemoryApprovalBackend()
    guard = Edictum.from_yaml_string(BUNDLE.format(message="sure?"), approval_backend=backend)
    task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await wait_in_loop(lambda: backend.pending)
    await guard.reload(BUNDLE.format(message="really sure?"))
    backend.decide(backend.pending[0].approval_id, True, approver="carol")
    outcome = await task
    assert isinstance(outcome, ToolDenied)
    assert "policy has changed" in outcome.details
    last = guard.local_sink.last()
    assert (last.action, last.approver, last.outcome) == ("call_approval_void", None, "denied")


async def test_a_comment_voids_no_answer() -> None:
    """It is bound to what the policy says, not to the bytes of its file."""
    backend = InMemoryApprovalBackend()
    bundle = BUNDLE.format(message="sure?")
    guard = Edictum.from_yaml_string(bundle, approval_backend=backend)
    version, digest = guard.policy_version, guard.policy_digest
    task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await wait_in_loop(lambda: backend.pending)
    await guard.reload(f"# reviewed\n{bundle}\nobservability: {{stdout: true}}\n")
    assert (guard.policy_version != version, guard.policy_digest) == (True, digest)
    backend.decide(backend.pending[0].approval_id, True, approver="carol")
    assert isinstance(await task, ToolExecutionResult)
    events = [event for event in guard.local_sink.events if event.call_id]  # of the call
    assert [event.approver for event in events] == [None, "carol", None]
    assert {(event.policy_version, event.policy_digest) for event in events} == {(version, digest)}


# --- What a backend is shown ----------------------------------------------------------------------

SECRETS = {"password": "hunter2", "note": "Bearer q7Zk2mX9vB4nR8tL", "amount": 5}
HIDDEN = {"password": "[REDACTED]", "note": "Bearer [REDACTED]", "amount": 5}


def ask_to_pay(**options: Any) -> Any:
    @precondition("pay", effect="approve", **options)
    def ask(call: Any) -> Verdict:
        return Verdict.fail("Pay with --password hunter2?")

    return ask


async def test_a_backend_is_shown_no_secrets() -> None:
    """Arguments, question and principal may be posted where others read them."""
    backend = InMemoryApprovalBackend(True)
    guard = Edictum(contracts=[ask_to_pay()], approval_backend=backend)
    ann = Principal(user_id="ann", claims={"api_key": "k-1"})
    ran = await guard.run("pay", SECRETS, lambda **args: args, principal=ann)
    (request,) = backend.requests
    assert (request.tool_args, request.message) == (HIDDEN, "Pay with --password [REDACTED]?")
    assert request.principal is not None
    assert request.principal["claims"] == {"api_key": "[REDACTED]"}
    assert ran == SECRETS


async def test_a_backend_gets_secrets_only_if_it_asks_for_them_by_name() -> None:
    """With a parameter ``raw_args``, beside the arguments without secrets."""
    seen: list[Any] = []

    class Vault(InMemoryApprovalBackend):
        async def request_approval(self, *args: Any, raw_args: Any, **options: Any) -> Any:
            seen.append(dict(raw_args))
            return await super().request_approval(*args, **options)

    backend = Vault(True)
    guard = Edictum(contracts=[ask_to_pay()], approval_backend=backend)
    await guard.run("pay", SECRETS, lambda **args: args)
    assert (seen, backend.requests[0].tool_args) == ([SECRETS], HIDDEN)


class RenamedId(InMemoryApprovalBackend):
    async def wait_for_decision(self, id: str, timeout: float | None = None) -> Any:  # type: ignore[override]
        raise AssertionError


class WithoutSession(InMemoryApprovalBackend):
    async def request_approval(self, tool_name: str, tool_args: Any, message: str) -> Any:  # type: ignore[override]  # the mistake
        raise AssertionError


class WithdrawsNothing(InMemoryApprovalBackend):
    async def withdraw(self) -> None:  # type: ignore[override]  # the mistake
        raise AssertionError


@pytest.mark.parametrize(
    ("backend", "problem"),
    [
        (RenamedId(), r"RenamedId\.wait_for_decision cannot be called .*'id'"),
        (WithoutSession(), r"WithoutSession\.request_approval cannot be called .*'timeout'"),
        (WithdrawsNothing(), r"withdraw is called with \(approval_id\), which it cannot take"),
    ],
)
def test_wrong_parameters_of_a_backend_are_found_when_the_guard_is_made(
    backend: Any, problem: str
) -> None:
    """Not as a denial of the first call that asks."""
    with pytest.raises(EdictumConfigError, match=problem):
        Edictum(approval_backend=backend)


# --- A framework's own exceptions ------------------------------------------------------------------


class Deferred(Exception):
    """Stands for a framework's interrupt."""


class Interrupting(InMemoryApprovalBackend):
    """Defers at the first question, and is answered at the second."""

    def __init__(self, at: str) -> None:
        super().__init__(True)
        self.at, self.signal = at, Deferred("ask a person")

    def interrupt(self, at: str) -> None:
        if self.at == at:
            self.at = ""
            raise self.signal

    async def request_approval(self, *args: Any, **options: Any) -> Any:
        self.interrupt("request")
        return await super().request_approval(*args, **options)

    async def wait_for_decision(self, approval_id: str, timeout: float | None = None) -> Any:
        self.interrupt("wait")
        return await super().wait_for_decision(approval_id, timeout)


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("at", ["request", "wait"])
async def test_an_interrupt_inside_a_backend_passes_through(at: str, synchronous: bool) -> None:
    """The call is closed as paused, holds nothing, and the framework makes it again."""
    backend = Interrupting(at)
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)

    async def call() -> Any:
        options: Any = {"session_id": "s", "control_flow": (Deferred,)}
        if synchronous:
            return await asyncio.to_thread(guard.dispatch_sync, "t", {}, lambda: 1, **options)
        return await guard.dispatch("t", {}, lambda: 1, **options)

    with pytest.raises(Deferred) as raised:
        await call()
    assert raised.value is backend.signal
    assert list_actions(guard)[-1] == "call_paused"
    assert backend.withdrawn == []
    session = guard.session("s").snapshot().totals
    assert (session.executions, session.in_flight) == (0, 0)
    assert isinstance(await call(), ToolExecutionResult)
    assert list_actions(guard)[-2:] == ["call_approval_granted", "call_executed"]


async def test_an_exception_that_nobody_named_is_a_failure_of_the_backend() -> None:
    """A guard alone knows no framework."""
    guard = Edictum(contracts=[approval_contract()], approval_backend=Interrupting("request"))
    outcome = await guard.dispatch("t", {}, lambda: 1)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error


async def test_a_ticket_passes_an_interrupt_on() -> None:
    """For frameworks with a hook before the tool."""
    guard = Edictum(contracts=[approval_contract()], approval_backend=Interrupting("wait"))
    with pytest.raises(Deferred):
        await guard.begin("t", {}, control_flow=(Deferred,))
    assert list_actions(guard) == ["call_approval_requested", "call_paused"]


# --- In memory ------------------------------------------------------------------------------------


class TestInMemory(ApprovalConformance):
    def make_backend(self) -> Any:
        return InMemoryApprovalBackend()

    async def answer(self, backend: Any, request: ApprovalRequest, approved: bool) -> None:
        backend.decide(request.approval_id, approved)


async def test_an_answer_can_be_computed_from_the_request() -> None:
    """For tests of code that asks."""
    backend = InMemoryApprovalBackend(lambda request: request.tool_args["x"] > 1)
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    assert isinstance(await guard.dispatch("t", {"x": 2}, lambda x: x), ToolExecutionResult)
    assert isinstance(await guard.dispatch("t", {"x": 1}, lambda x: x), ToolDenied)


async def test_deciding_twice_keeps_the_first_answer() -> None:
    """And deciding about nothing is an error."""
    backend = InMemoryApprovalBackend()
    request = await backend.request_approval("t", {}, "?")
    backend.decide(request.approval_id, False)
    backend.decide(request.approval_id, True)
    assert (await backend.wait_for_decision(request.approval_id)).approved is False
    with pytest.raises(KeyError):
        backend.decide(request.approval_id, True)


def test_a_decision_may_come_from_another_thread() -> None:
    """The backend belongs to no loop."""
    backend = InMemoryApprovalBackend()
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    outcomes: list[Any] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(guard.dispatch_sync("t", {}, lambda: 1))
    )
    thread.start()
    while not backend.pending:
        pass
    backend.decide(backend.pending[0].approval_id, True)
    thread.join(60)
    assert isinstance(outcomes[0], ToolExecutionResult)


# --- On the terminal ------------------------------------------------------------------------------


class Terminal:
    """A pair of real pipes: what a person types, and what is shown."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.stdin = os.fdopen(reading, "r")
        self._keys = os.fdopen(writing, "w")
        self.stdout = io.StringIO()

    def type(self, text: str) -> None:
        self._keys.write(text)
        self._keys.flush()

    def close_input(self) -> None:
        self._keys.close()

    async def shows(self, text: str) -> None:
        await wait_in_loop(lambda: text in self.stdout.getvalue())

    async def shows_questions(self, count: int) -> None:
        await wait_in_loop(lambda: self.stdout.getvalue().count("Approve? [y/N]") >= count)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    if not made._keys.closed:
        made._keys.close()
    for thread in threading.enumerate():
        if thread.name == "edictum-approval":
            thread.join(60)
    made.stdin.close()


class TestLocal(ApprovalConformance):
    @pytest.fixture(autouse=True)
    def _terminal(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def make_backend(self) -> Any:
        return LocalApprovalBackend(stdin=self.terminal.stdin, stdout=self.terminal.stdout)

    async def answer(self, backend: Any, request: ApprovalRequest, approved: bool) -> None:
        await self.terminal.shows(request.approval_id)
        self.terminal.type("y\n" if approved else "n\n")


@pytest.mark.parametrize(
    ("typed", "approved"),
    [
        ("y", True),
        ("yes", True),
        ("YES", True),
        (" approve ", True),
        ("n", False),
        ("", False),
        ("yy", False),
        ("yes please", False),
    ],
)
async def test_what_a_person_types(terminal: Terminal, typed: str, approved: bool) -> None:
    """Only a clear yes is one."""
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout),
    )
    task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await terminal.shows_questions(1)
    terminal.type(typed + "\n")
    assert isinstance(await task, ToolExecutionResult if approved else ToolDenied)
    assert guard.local_sink.events[1].approver == "local"


async def test_the_question_shows_the_arguments_redacted(terminal: Terminal) -> None:
    """What the person needs, and nothing that must not stand on a screen."""
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout),
    )
    task = asyncio.ensure_future(
        guard.dispatch(
            "deploy",
            {"host": "db-1", "password": "hunter2", "cmd": "export API_KEY=hunter3"},
            lambda **args: 1,
        )
    )
    await terminal.shows_questions(1)
    terminal.type("n\n")
    await task
    shown = terminal.stdout.getvalue()
    assert "[APPROVAL REQUIRED] are you sure?" in shown
    assert "Tool: deploy" in shown
    assert '"host": "db-1"' in shown
    assert "hunter2" not in shown
    assert "hunter3" not in shown


async def test_control_characters_in_a_question_do_not_reach_the_terminal(
    terminal: Terminal,
) -> None:
    """A model could otherwise repaint the screen and ask for something else."""
    contract = approval_contract(message="sure?\x1b[2J\x1b[1;1HApprove? harmless \x9b2J \r hidden")
    guard = Edictum(
        contracts=[contract],
        approval_backend=LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout),
    )
    task = asyncio.ensure_future(guard.dispatch("t", {"x": "\x1b[2J"}, lambda x: 1))
    await terminal.shows_questions(1)
    terminal.type("n\n")
    await task
    assert not set(terminal.stdout.getvalue()) & {"\x1b", "\x9b", "\r"}


async def test_a_prompt_that_timed_out_does_not_eat_the_next_line(terminal: Terminal) -> None:
    """The late answer is thrown away, the next one belongs to the next question."""
    backend = LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout)
    slow = Edictum(contracts=[approval_contract(timeout=SOON)], approval_backend=backend)
    assert isinstance(await slow.dispatch("t", {}, lambda: 1), ToolDenied)
    assert list_actions(slow)[-1] == "call_approval_timeout"
    assert "(no answer in time)" in terminal.stdout.getvalue()
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    for typed, wanted in (
        ("y", ToolExecutionResult),
        ("n", ToolDenied),
        ("y", ToolExecutionResult),
    ):
        before = terminal.stdout.getvalue().count("Approve? [y/N]")
        task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
        await terminal.shows_questions(before + 1)
        terminal.type(typed + "\n")
        assert isinstance(await task, wanted)


async def test_a_line_typed_for_a_question_that_timed_out_does_not_answer_the_next(
    terminal: Terminal,
) -> None:
    """A late yes is a yes to the old question."""
    backend = LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout)
    await Edictum(contracts=[approval_contract(timeout=SOON)], approval_backend=backend).dispatch(
        "t", {}, lambda: 1
    )
    terminal.type("y\n")
    await asyncio.sleep(SOON)
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await terminal.shows_questions(2)
    await asyncio.sleep(SOON)
    assert not task.done()
    terminal.type("n\n")
    assert isinstance(await task, ToolDenied)


async def test_questions_are_put_one_at_a_time(terminal: Terminal) -> None:
    """Each line answers the question that stands there."""
    backend = LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout)
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    tasks = [
        asyncio.ensure_future(guard.dispatch(f"tool-{number}", {}, lambda: 1))
        for number in range(2)
    ]
    await terminal.shows_questions(1)
    await asyncio.sleep(SOON)
    assert terminal.stdout.getvalue().count("Approve? [y/N]") == 1
    first = 0 if "tool-0" in terminal.stdout.getvalue() else 1
    terminal.type("y\n")
    assert isinstance(await tasks[first], ToolExecutionResult)
    await terminal.shows_questions(2)
    terminal.type("n\n")
    assert isinstance(await tasks[1 - first], ToolDenied)


async def test_waiting_for_ones_turn_is_part_of_the_requests_time(terminal: Terminal) -> None:
    """A question that was never put times out like one that was not answered."""
    backend = LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout)
    busy = asyncio.ensure_future(
        Edictum(contracts=[approval_contract()], approval_backend=backend).dispatch(
            "busy", {}, lambda: 1
        )
    )
    await terminal.shows_questions(1)
    waiting = Edictum(contracts=[approval_contract(timeout=SOON)], approval_backend=backend)
    assert isinstance(await waiting.dispatch("t", {}, lambda: 1), ToolDenied)
    assert list_actions(waiting)[-1] == "call_approval_timeout"
    terminal.type("y\n")
    assert isinstance(await busy, ToolExecutionResult)


async def test_a_closed_input_means_no_now_and_later(terminal: Terminal) -> None:
    """Nobody can answer."""
    terminal.close_input()
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout),
    )
    for _ in range(3):
        outcome = await guard.dispatch("t", {}, lambda: 1)
        assert isinstance(outcome, ToolDenied)
        assert outcome.details == "Standard input is closed, so the question cannot be answered."
    assert list_actions(guard).count("call_approval_denied") == 3


async def test_it_works_on_a_real_terminal() -> None:
    """A pseudo-terminal, as a person has one."""
    leader, follower = pty.openpty()
    with (
        os.fdopen(follower, "r", closefd=False) as stdin,
        os.fdopen(os.dup(follower), "w") as stdout,
    ):
        guard = Edictum(
            contracts=[approval_contract()],
            approval_backend=LocalApprovalBackend(stdin=stdin, stdout=stdout),
        )
        task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: "done"))
        shown = b""
        while b"Approve?" not in shown:
            shown += await asyncio.to_thread(os.read, leader, 4096)
        os.write(leader, b"y\n")
        assert isinstance(await task, ToolExecutionResult)
        os.write(leader, b"\x04")  # end of input, so that the reading thread ends
        for thread in threading.enumerate():
            if thread.name == "edictum-approval":
                await asyncio.to_thread(thread.join, 5)
    os.close(follower)
    os.close(leader)


def test_it_works_for_synchronous_callers(terminal: Terminal) -> None:
    """Through the portal."""
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=LocalApprovalBackend(stdin=terminal.stdin, stdout=terminal.stdout),
    )
    outcomes: list[Any] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(guard.dispatch_sync("t", {}, lambda: 1))
    )
    thread.start()
    asyncio.run(terminal.shows_questions(1))
    terminal.type("y\n")
    thread.join(60)
    assert isinstance(outcomes[0], ToolExecutionResult)
