"""Read by mypy only: a ``match`` over ToolOutcome is exhaustive, and what users write is typed."""

from typing import Any, assert_never, assert_type

from edictum import (
    Contract,
    Edictum,
    EvaluationResult,
    HookDecision,
    HookRegistration,
    OperationLimits,
    Principal,
    Session,
    Ticket,
    ToolArtifactReference,
    ToolCall,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    Verdict,
    outcome_to_model_content,
    postcondition,
    precondition,
    session_contract,
)
from edictum.success import Checker, all_of, http_status, per_tool


def complete(outcome: ToolOutcome) -> str:
    match outcome:
        case ToolExecutionResult():
            return str(outcome.output)
        case ToolArtifactReference():
            return outcome.artifact_id
        case ToolFailure():
            return outcome.error
        case ToolTimeout():
            return str(outcome.deadline_s)
        case ToolDenied():
            return outcome.reason
        case _:
            assert_never(outcome)


def forgets_one(outcome: ToolOutcome) -> str:
    match outcome:
        case ToolExecutionResult() | ToolArtifactReference() | ToolFailure() | ToolTimeout():
            return outcome.tool_name
        case _:
            assert_never(outcome)  # type: ignore[arg-type]  # ToolDenied is missing, and mypy says so


@precondition("send")
def pre(call: ToolCall) -> Verdict:
    return Verdict.fail("too big") if call.args["size"] > 10 else Verdict.pass_()


@precondition(["send", "mail_*"], effect="approve", timeout=60)
async def pre_async(call: ToolCall) -> Verdict:
    return Verdict.pass_()


@postcondition("send", effect="redact")
def post(call: ToolCall, result: Any) -> Verdict:
    return Verdict.pass_()


@session_contract
def bare(session: Session) -> Verdict:
    return Verdict.fail("enough") if session.executions >= 3 else Verdict.pass_()


@session_contract(mode="observe")
async def with_options(session: Session) -> Verdict:
    return Verdict.pass_() if await session.execution_count() < 3 else Verdict.fail("enough")


assert_type(pre, Contract)
assert_type(bare, Contract)
assert_type(with_options, Contract)


def before(call: ToolCall) -> HookDecision:
    return HookDecision.allow()


guard = Edictum(
    contracts=[pre, pre_async, post, bare, with_options],
    hooks=[HookRegistration("before", "*", before)],
    limits=OperationLimits(max_successes=3, max_calls_per_tool={"send": 2}),
    tools={"send": {"side_effect": "write"}},
    success_check=per_tool({"http_*": all_of(http_status)}),
    principal=Principal(user_id="u"),
    mode="enforce",
)
Edictum(mode="audit")  # type: ignore[arg-type]


async def use() -> None:
    assert_type(await guard.dispatch("send", {}, print), ToolOutcome)
    assert_type(guard.dispatch_sync("send", {}, print), ToolOutcome)
    assert_type(guard.evaluate("send", {}), EvaluationResult)
    ticket = await guard.begin("send", {})
    assert_type(ticket, Ticket)
    assert_type(await ticket.finish(1), ToolOutcome)
    assert_type(guard.session("s"), Session)
    assert_type(guard.session("s").executions, int)
    assert_type(outcome_to_model_content(guard.dispatch_sync("send", {}, print)), str)


assert_type(http_status("t", 1), bool)
assert_type(all_of(http_status), Checker)
