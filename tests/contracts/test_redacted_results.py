"""What a contract takes out of a result, or what is secret by its name, is found nowhere: not in
the result, a reason or the audit.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from edictum import Edictum, Verdict, postcondition
from edictum.contracts._regex import compile_pattern
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure
from edictum.success import Checker

SSN = "123-45-6789"
HEAD = (
    "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: p}\ntools: {t: {side_effect:"
    " read}}\n"
)
NUMBERS = r"{result.text: {matches: '\d{3}-\d{2}-\d{4}'}}"


def post(when: str) -> str:
    return (
        f"{HEAD}contracts:\n  - {{id: r, type: post, tool: t, when: {when}, then: {{effect: redact,"
        " message: m}}\n"
    )


def told(guard: Edictum, outcome: Any) -> str:
    """All that the model, the caller and the audit are told."""
    return repr(outcome) + "".join(repr(event.to_dict()) for event in guard.local_sink.events)


# --- A condition on the call and the result -------------------------------------------------------

SUPPRESSED = {"suppressed": "[OUTPUT SUPPRESSED] m"}
CALL = "{args.kind: {equals: secret}}"
CONDITIONS = {
    "the call alone speaks": (
        f"{{any: [{CALL}, {{result.text: {{matches: zzz}}}}]}}",
        "secret",
        {"ssn": SSN},
        SUPPRESSED,
    ),
    "both speak": (f"{{any: [{CALL}, {NUMBERS}]}}", "secret", {"ssn": SSN}, SUPPRESSED),
    "the result alone speaks": (
        f"{{any: [{CALL}, {NUMBERS}]}}",
        "open",
        {"ssn": SSN},
        {"ssn": "[REDACTED]"},
    ),
    "they speak together": (
        f"{{all: [{CALL}, {NUMBERS}]}}",
        "secret",
        {"ssn": SSN},
        {"ssn": "[REDACTED]"},
    ),
    "the call speaks by not": (
        f"{{any: [{{not: {CALL}}}, {NUMBERS}]}}",
        "open",
        {"ssn": SSN},
        SUPPRESSED,
    ),
    "the guard's own takes out something else": (
        "{result.ssn: {exists: true}}",
        "open",
        {"ssn": SSN, "password": "x"},
        SUPPRESSED,
    ),
    "the guard's own takes out all": (
        "{result.password: {exists: true}}",
        "open",
        {"password": "x"},
        {"password": "[REDACTED]"},
    ),
}


@pytest.mark.parametrize(("when", "kind", "result", "shown"), CONDITIONS.values(), ids=CONDITIONS)
def test_what_the_condition_still_objects_to_is_suppressed(
    when: str, kind: str, result: Any, shown: Any
) -> None:
    outcome = Edictum.from_yaml_string(post(when)).dispatch_sync(
        "t", {"kind": kind}, lambda kind: result
    )
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == shown


def test_keys_that_become_alike_keep_their_values() -> None:
    result = {SSN: 1, "a": {SSN: 1, "[REDACTED] (2)": 2, "987-65-4321": 3}, "987-65-4321": 4}
    outcome = Edictum.from_yaml_string(post(NUMBERS)).dispatch_sync("t", {}, lambda: result)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {
        "[REDACTED]": 1,
        "a": {"[REDACTED]": 1, "[REDACTED] (2)": 2, "[REDACTED] (3)": 3},
        "[REDACTED] (2)": 4,
    }


# --- The reason of a failure ----------------------------------------------------------------------


def raises() -> None:
    raise ValueError(f"fail {SSN}")


def rule(when: str) -> str:
    return f"success:\n  - {{id: s, tool: t, failure_when: {when}}}\n"


NOT_TOLD = "The reason is hidden: it may quote text that a contract removed from the result."
REASONS: dict[str, tuple[str, dict[str, Any], Callable[[], Any], str]] = {
    "the tool's exception": ("", {}, raises, "ValueError: fail [REDACTED]"),
    "a rule": (
        rule("{result.note: {contains: No}}"),
        {},
        lambda: {"note": f"No {SSN}"},
        "result.note is 'No [REDACTED]' (contains 'No')",
    ),
    "a rule that sees it no more": (
        rule(f"{{result.ssn: {{equals: {SSN}}}}}"),
        {},
        lambda: {"ssn": SSN},
        NOT_TOLD,
    ),
    "a success check": (
        "",
        {"success_check": Checker(lambda _tool, result: f"it is {result}")},
        lambda: {"ssn": SSN},
        NOT_TOLD,
    ),
    "a reason that quotes nothing": (
        "",
        {},
        lambda: {"is_error": True, "ssn": SSN},
        "is_error is set",
    ),
}


@pytest.mark.parametrize(("rules", "options", "body", "reason"), REASONS.values(), ids=REASONS)
def test_the_reason_of_a_failure_quotes_nothing_that_was_taken_out(
    rules: str, options: dict[str, Any], body: Callable[[], Any], reason: str
) -> None:
    guard = Edictum.from_yaml_string(post(NUMBERS) + rules, **options)
    outcome = guard.dispatch_sync("t", {}, body)
    assert isinstance(outcome, ToolFailure)
    assert (outcome.success_reason, guard.local_sink.last().success_reason) == (reason, reason)
    assert SSN not in told(guard, outcome)


def test_a_rule_that_cannot_judge_what_is_left() -> None:
    """A number became text: the rule would raise, and says nothing."""
    bundle = post("{result.salary: {gt: 0}}") + rule("{result.salary: {gt: 9}}")
    outcome = Edictum.from_yaml_string(bundle).dispatch_sync("t", {}, lambda: {"salary": 98765})
    assert isinstance(outcome, ToolFailure)
    assert (outcome.success_reason, outcome.value) == (NOT_TOLD, {"salary": "[REDACTED]"})


@pytest.mark.parametrize(("effect", "leaks"), [("warn", True), ("deny", False), ("redact", False)])
def test_contracts_in_python_too(effect: Any, leaks: bool) -> None:
    """Also one whose redaction makes something else of the text than a text."""
    options = {"redact": lambda _text: 7} if effect == "redact" else {}
    contract = postcondition("t", effect=effect, **options)(
        lambda _call, _result: Verdict.fail("odd")
    )
    guard = Edictum(contracts=[contract])
    outcome = guard.dispatch_sync("t", {}, raises)
    assert isinstance(outcome, ToolFailure)
    assert (SSN in str(outcome.success_reason)) is leaks


# --- Placeholders ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "selector",
    ["args.password", "args.password[0]", "args.credentials.user.name", "args.secrets[*].db"],
)
def test_all_that_lies_under_a_sensitive_key_is_hidden(selector: str) -> None:
    args = {
        "password": ["hunter2"],
        "credentials": {"user": {"name": "hunter2"}},
        "secrets": [{"db": "hunter2"}],
    }
    then = f"{{effect: deny, message: 'no {{{selector}}}'}}"
    bundle = (
        f"{HEAD}contracts:\n  - {{id: a, type: pre, tool: t, when: {{'{selector}': {{exists:"
        f" true}}}}, then: {then}}}\n"
    )
    guard = Edictum.from_yaml_string(bundle)
    outcome = guard.dispatch_sync("t", args, lambda **_args: 1)
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "no [REDACTED]"
    assert "hunter2" not in told(guard, outcome) + str(guard.explain("t", args))


MANY_NUMBERS = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: numbers}
contracts:
  - id: numbers
    type: post
    tool: read
    when: {output.text: {matches: '\\d{3}-\\d{2}'}}
    then: {effect: redact, message: numbers}
"""


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: {"a": 1, "text": text}])
async def test_a_long_text_with_many_matches_does_not_hold_the_event_loop(
    wrap: Callable[[str], Any],
) -> None:
    """It is redacted in a thread; other tasks run meanwhile."""
    guard, ticks, at_return = Edictum.from_yaml_string(MANY_NUMBERS), 0, 0

    def read() -> Any:
        nonlocal at_return
        at_return = ticks
        return wrap("é 123-45 ü " * 40_000)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    outcome = await guard.dispatch("read", {}, read)
    assert ticks > at_return
    ticking.cancel()
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == wrap("é [REDACTED] ü " * 40_000)


async def test_a_caller_that_is_cancelled_while_a_long_text_is_redacted_loses_no_event() -> None:
    started, release = threading.Event(), threading.Event()

    def hide(result: Any) -> str:
        started.set()
        release.wait(30)
        return "hidden"

    @postcondition("read", effect="redact", redact=hide)
    def long(call: Any, result: Any) -> Verdict:
        return Verdict.fail("long")

    guard = Edictum(contracts=[long])
    task = asyncio.ensure_future(guard.dispatch("read", {}, lambda: "x" * 200_000))
    await asyncio.to_thread(started.wait, 30)
    task.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    last = guard.local_sink.last()
    assert (last.action, last.result_summary) == ("call_executed", '"hidden"')


def test_every_match_is_replaced_whatever_stands_between() -> None:
    """Empty matches, neighbours, other alphabets, and halves of characters."""
    for pattern in ("a", "a*", "é", "[0-9]+", "^x", "$", r"\b"):
        for text in ("", "aaa", "éaé 12é", "x\ud800y a", "日本 7 a", "xyz"):
            replaced = compile_pattern(pattern).replace(text, lambda _: "[REDACTED]")
            plain = re.sub(pattern, "[REDACTED]", text.replace("\ud800", "?"))
            if "*" in pattern or pattern in ("$", r"\b"):
                assert replaced.replace("[REDACTED]", "") == plain.replace("[REDACTED]", "")
            else:
                assert replaced == plain
