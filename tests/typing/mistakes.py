"""What users get wrong, one mistake to a line. mypy must object to each, with the error that the
line names; nothing here is run.

``test_mistakes.py`` takes the ignores away and compares what mypy says; the words after an error's
code must be part of it.
"""

from typing import Any

import edictum
from edictum import (
    ApprovalBackend,
    Edictum,
    Session,
    SessionView,
    ToolCall,
    Verdict,
    adapters,
    postcondition,
    precondition,
    session_contract,
    testing,
)

guard = Edictum()


# --- Names that are imported when they are first used ---------------------------------------------

print(edictum.Edictm)  # type: ignore[attr-defined]  # no attribute "Edictm"
print(testing.LegerConformance)  # type: ignore[attr-defined]  # no attribute "LegerConformance"
print(adapters.LangchainAdapter)  # type: ignore[attr-defined]  # no attribute "LangchainAdapter"


# --- Options of a call: misspelt, or of another type ----------------------------------------------


async def calls(args: dict[str, Any], wrong: dict[str, str]) -> None:
    await guard.run("t", args, print, sesion_id="x")  # type: ignore[call-arg]  # Unexpected keyword argument "sesion_id"
    guard.run_sync("t", args, print, sesion_id="x")  # type: ignore[call-arg]  # Unexpected keyword argument "sesion_id"
    await guard.dispatch("t", args, print, principle=None)  # type: ignore[call-arg]  # Unexpected keyword argument "principle"
    guard.dispatch_sync("t", args, print, timeout=3)  # type: ignore[call-arg]  # Unexpected keyword argument "timeout"
    await guard.begin("t", args, amount={"cost": 1})  # type: ignore[call-arg]  # Unexpected keyword argument "amount"
    guard.begin_sync("t", args, calid="c1")  # type: ignore[call-arg]  # Unexpected keyword argument "calid"
    guard.run_sync("t", args, print, session_id=7)  # type: ignore[arg-type]  # expected "str | None"
    guard.run_sync("t", args, print, principal="ada")  # type: ignore[arg-type]  # expected "Principal | None"
    guard.run_sync("t", args, print, run_in="threads")  # type: ignore[arg-type]  # Literal['inline', 'thread', 'process'] | Engine
    guard.run_sync("t", args, print, timeout_s="3")  # type: ignore[arg-type]  # expected "float | None"
    guard.run_sync("t", args, print, timestamp=0.0)  # type: ignore[arg-type]  # expected "datetime | None"
    guard.run_sync("t", args, print, amounts={"cost": "1"})  # type: ignore[dict-item]  # "str": "float"
    guard.run_sync("t", args, print, **wrong)  # type: ignore[arg-type]  # **dict[str, str]
    guard.evaluate("t", args, sesion_id="x")  # type: ignore[call-arg]  # Unexpected keyword argument "sesion_id"
    adapters.ClaudeAgentSDKAdapter(guard, sesion_id="x")  # type: ignore[call-arg]  # Unexpected keyword argument "sesion_id"
    testing.load_cases("cases.yaml", custom_operator={})  # type: ignore[call-arg]  # Unexpected keyword argument "custom_operator"


# --- Contracts: options and signatures ------------------------------------------------------------


@precondition("x", efect="deny")  # type: ignore[call-arg]  # Unexpected keyword argument "efect"
def misspelt(call: ToolCall) -> Verdict:
    return Verdict.pass_()


@precondition("x", effect="redact")  # type: ignore[arg-type]  # expected "Literal['deny', 'approve']"
def effect_of_a_postcondition(call: ToolCall) -> Verdict:
    return Verdict.pass_()


@postcondition("x", effect="approve")  # type: ignore[arg-type]  # expected "Literal['warn', 'redact', 'deny']"
def effect_of_a_precondition(call: ToolCall, result: Any) -> Verdict:
    return Verdict.pass_()


@postcondition("x", timeout=3)  # type: ignore[call-arg]  # Unexpected keyword argument "timeout"
def option_of_a_precondition(call: ToolCall, result: Any) -> Verdict:
    return Verdict.pass_()


@precondition("x", mode="audit")  # type: ignore[arg-type]  # expected "Literal['enforce', 'observe'] | None"
def unknown_mode(call: ToolCall) -> Verdict:
    return Verdict.pass_()


@precondition("x")  # type: ignore[arg-type]  # expected "Callable[[ToolCall], Verdict | Awaitable[Verdict]]"
def wants_a_result(call: ToolCall, result: Any) -> Verdict:
    return Verdict.pass_()


@precondition("x")  # type: ignore[arg-type]  # "Callable[[SessionView], Verdict]"
def wants_a_session(session: SessionView) -> Verdict:
    return Verdict.pass_()


@precondition("x")  # type: ignore[arg-type]  # "Callable[[ToolCall], bool]"
def says_yes_or_no(call: ToolCall) -> bool:
    return True


@postcondition("x")  # type: ignore[arg-type]  # expected "Callable[[ToolCall, Any], Verdict | Awaitable[Verdict]]"
def wants_no_result(call: ToolCall) -> Verdict:
    return Verdict.pass_()


@session_contract  # type: ignore[arg-type]  # expected "Callable[[SessionView], Verdict | Awaitable[Verdict]]"
def wants_a_call(call: ToolCall) -> Verdict:
    return Verdict.pass_()


@session_contract(id="x")  # type: ignore[arg-type]  # expected "Callable[[SessionView], Verdict | Awaitable[Verdict]]"
def wants_two(session: Session, result: Any) -> Verdict:
    return Verdict.pass_()


@session_contract
def misspelt_counter(session: SessionView) -> Verdict:
    return Verdict.pass_() if session.exections < 3 else Verdict.fail("no")  # type: ignore[attr-defined]  # no attribute "exections"


precondition("x", when=lambda call: call.arg == 1)  # type: ignore[attr-defined]  # no attribute "arg"
precondition("x")(lambda call: Verdict.pass_() if call.tool else Verdict.fail("no"))  # type: ignore[attr-defined]  # no attribute "tool"
session_contract(mod="observe")  # type: ignore[call-overload]  # "session_contract"
session_contract(id="x")(lambda session: Verdict.fail(session.sesion_id))  # type: ignore[attr-defined]  # no attribute "sesion_id"


# --- Ports ----------------------------------------------------------------------------------------


async def asks(backend: ApprovalBackend) -> None:
    await backend.request_approval("t", {}, "Sure?", timeout="soon")  # type: ignore[arg-type]  # expected "float"
