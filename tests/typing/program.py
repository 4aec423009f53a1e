"""What a user writes with all types stated. mypy finds nothing in it, and it runs: what the
annotations allow is accepted.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Unpack, assert_type

from edictum import (
    ApprovalDecision,
    ApprovalRequest,
    ApprovalStatus,
    Contract,
    Edictum,
    InMemoryApprovalBackend,
    Principal,
    Session,
    SessionView,
    Ticket,
    ToolCall,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.adapters import ClaudeAgentSDKAdapter, LangChainAdapter
from edictum.call_options import CallOptions
from edictum.sessions import Ledger, MemoryLedger
from edictum.testing import LedgerConformance

# --- Contracts: synchronous or not, with exact types, with wider ones, with none ------------------


@precondition(
    "send",
    when=lambda call: call.args["to"] != "me",
    id="few",
    tags=["mail"],
    metadata={"owner": "ops"},
    mode="enforce",
)
def pre(call: ToolCall) -> Verdict:
    return Verdict.fail("Too many.") if len(call.args["to"]) > 10 else Verdict.pass_()


@precondition(["send", "mail_*"], effect="approve", timeout=30.5, timeout_effect="deny")
async def pre_async(call: Any) -> Verdict:
    return Verdict.fail("Sure?")


@postcondition("send", effect="redact", redact=lambda result: "sent")
def post(call: ToolCall, result: Any) -> Verdict:
    return Verdict.fail("It names a person.")


@postcondition("*")
def post_of_anything(call: object, result: object) -> Verdict:
    return Verdict.pass_()


@session_contract
def bare(session: SessionView) -> Verdict:
    return Verdict.fail("Enough.") if session.executions >= 3 else Verdict.pass_()


@session_contract(mode="observe", id="calm", tags=("pace",))
async def stated(session: SessionView) -> Verdict:
    return (
        Verdict.pass_()
        if session.call is None or await session.execution_count() < 3
        else Verdict.fail("Enough.")
    )


@session_contract
def of_the_older_library(session: Session) -> Verdict:
    return Verdict.pass_() if session.session_id else Verdict.fail("Nameless.")


@session_contract(id="untyped")
def of_anything(session: Any) -> Verdict:
    return Verdict.pass_()


CONTRACTS = [
    pre,
    pre_async,
    post,
    post_of_anything,
    bare,
    stated,
    of_the_older_library,
    of_anything,
]
CONTRACTS += [
    precondition("*", id="short")(
        lambda call: Verdict.pass_() if call.tool_name else Verdict.fail("Nameless.")
    ),
    session_contract(id="shorter")(
        lambda session: Verdict.pass_() if session.session_id else Verdict.fail("Nameless.")
    ),
]
assert_type(CONTRACTS, list[Contract])


# --- Ports ----------------------------------------------------------------------------------------


class TestOurLedger(LedgerConformance):
    def make_ledger(self) -> Ledger:
        return MemoryLedger()


class OurApprovals:
    """A backend of the user's own, which says yes."""

    async def request_approval(
        self,
        tool_name: str,
        tool_args: Mapping[str, Any],
        message: str,
        *,
        timeout: float = 300,
        timeout_effect: Literal["deny", "allow"] = "deny",
        principal: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_id: str | None = None,
    ) -> ApprovalRequest:
        return ApprovalRequest("a1", tool_name, tool_args, message, timeout)

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        return ApprovalDecision(True, status=ApprovalStatus.APPROVED)


# --- Calls ----------------------------------------------------------------------------------------

# The options of a call, all of them; a test looks whether one is missing.
EVERY_OPTION: CallOptions = {
    "session_id": "s",
    "parent_session_id": ["above", "root"],
    "call_id": "c1",
    "parent_call_id": "c0",
    "tool_use_id": "u1",
    "call_index": 7,
    "caller": "planner",
    "environment": "staging",
    "metadata": {"why": "a test"},
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    "principal": Principal(user_id="ada"),
    "principal_resolver": None,
    "amounts": lambda call: {"cost": float(len(call.args))},
    "actual_amounts": lambda result: {"cost": 0.5},
    "control_flow": (InterruptedError,),
    "park": True,
    "parameters": {"properties": {"to": {"type": "string"}}},
    "timeout_s": 5,
    "run_in": "thread",
}


def send(to: str) -> str:
    return f"sent to {to}"


async def governed(guard: Edictum, to: str, **options: Unpack[CallOptions]) -> Any:
    """A wrapper of the user's own that passes options on."""
    return await guard.run("send", {"to": to}, send, **options)


async def ticket_of(guard: Edictum) -> Ticket:
    return await guard.begin("other", {}, session_id=None, metadata=None, timeout_s=None)


def loosely(guard: Edictum, options: dict[str, Any]) -> Any:
    return guard.run_sync("other", {}, lambda: "ran", **options)


async def main() -> None:
    guard = Edictum(contracts=CONTRACTS, approval_backend=OurApprovals())
    assert await governed(guard, "ada", **EVERY_OPTION) == "sent"
    assert isinstance(
        await guard.dispatch("send", {"to": "bob"}, send, session_id="t", amounts={"cost": 1}),
        ToolExecutionResult,
    )
    assert isinstance(
        guard.dispatch_sync("send", {"to": "everybody here"}, send, parent_session_id="above"),
        ToolDenied,
    )
    assert (await (await ticket_of(guard)).finish("done")).tool_name == "other"
    assert guard.begin_sync("other", {}, principal=None).finish_sync("done").tool_name == "other"
    assert loosely(guard, {"session_id": "u"}) == "ran"
    assert guard.evaluate("send", {"to": "ada"}, amounts=lambda call: {"cost": 1.0}).needs_approval
    asked = await InMemoryApprovalBackend(True).request_approval("send", {}, "Sure?", timeout=0.5)
    assert asked.timeout == 0.5
    assert (
        ClaudeAgentSDKAdapter(guard, session_id="a").session_id
        == LangChainAdapter(guard, session_id="a").session_id
    )
