"""The tools, contracts and guards of the adapters' suite, and how it reads what happened."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from edictum._audit_event import AuditEvent
from edictum.core.contract import Contract, Verdict, postcondition, precondition
from edictum.guard import Edictum

SECRET = "123-45-6789"  # noqa: S105  # a number that must not be read
MAX_WAIT_S = 60.0  # only a test that fails waits so long
CLOSING = ("call_executed", "call_failed", "call_denied", "call_paused")


class SuiteTools:
    """Makes the suite's tools, plain or asynchronous functions, and writes down that they ran."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.ran: list[str] = []
        self.release = threading.Event()  # for the bodies that ``make_endless`` makes
        self.ends: queue.SimpleQueue[str] = queue.SimpleQueue()  # how they ended

    def make(
        self, name: str, work: Callable[[str], Any], delay: Callable[[str], float] = lambda _: 0.0
    ) -> Callable[..., Any]:
        """Return a tool that waits ``delay(key)`` seconds and then does ``work(key)``."""

        def tool(key: str) -> Any:
            self.ran.append(key)
            time.sleep(delay(key))
            return work(key)

        async def atool(key: str) -> Any:
            self.ran.append(key)
            await asyncio.sleep(delay(key))
            return work(key)

        return name_tool(atool if self.asynchronous else tool, name)

    def make_personal(self, name: str) -> Callable[..., Any]:
        """Return a tool with arguments in which a model can name another user."""

        def tool(key: str, user_id: str = "", session_id: str = "") -> Any:
            self.ran.append(key)
            time.sleep(0.02)
            return look(key)

        async def atool(key: str, user_id: str = "", session_id: str = "") -> Any:
            self.ran.append(key)
            await asyncio.sleep(0.02)
            return look(key)

        return name_tool(atool if self.asynchronous else tool, name)

    def make_paying(self, name: str) -> Callable[..., Any]:
        """Return a tool with an argument that a model may leave out."""

        def tool(key: str, amount: float = 500.0) -> Any:
            self.ran.append(key)
            return f"paid {amount}"

        async def atool(key: str, amount: float = 500.0) -> Any:
            self.ran.append(key)
            return f"paid {amount}"

        return name_tool(atool if self.asynchronous else tool, name)

    def make_endless(self, name: str) -> Callable[..., Any]:
        """Return a tool that ends when released or cancelled, at the latest after MAX_WAIT_S."""

        def tool(key: str) -> Any:
            self.ran.append(key)
            return self._end(self.release.wait(MAX_WAIT_S))

        async def atool(key: str) -> Any:
            self.ran.append(key)
            try:
                return self._end(await wait_until(self.release.is_set))
            except asyncio.CancelledError:
                self.ends.put("cancelled")
                raise

        return name_tool(atool if self.asynchronous else tool, name)

    def _end(self, released: bool) -> str:
        self.ends.put("released" if released else "gave up")
        return "it ended"


def name_tool(tool: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Give a tool the name and the description that frameworks read from a function."""
    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = f"The tool {name}.\n\nArgs:\n    key: What to look for."
    return tool


async def wait_until(holds: Callable[[], bool]) -> bool:
    """Wait for something to come true; return False if it did not within MAX_WAIT_S."""
    for _ in range(int(MAX_WAIT_S / 0.01)):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return holds()


# --- What the tools do ----------------------------------------------------------------------------


def look(key: str) -> Any:
    return f"value of {key}"


def leak(key: str) -> Any:
    return f"the number of {key} is {SECRET}"


def leak_dict(key: str) -> Any:
    return {"name": key, "deep": [{"number": SECRET}], "count": 3}


def refund(key: str) -> Any:
    """Refund half of what was asked for."""
    return {"name": key, "refunded": float(key) / 2}


def fall(key: str) -> Any:
    raise ValueError(f"no luck with {key}")


# --- Contracts and guards -------------------------------------------------------------------------


@precondition("*", id="no-forbidden")
def no_forbidden(call: Any) -> Verdict:
    if call.args.get("key") == "forbidden":
        return Verdict.fail("The key is forbidden.")
    return Verdict.pass_()


@precondition("*", id="not-too-much")
def not_too_much(call: Any) -> Verdict:
    amount = call.effective_args.get("amount")
    if amount is not None and amount > 100:
        return Verdict.fail(f"{amount:g} is too much.")
    return Verdict.pass_()


def no_secret(effect: Literal["warn", "redact", "deny"], **options: Any) -> Contract:
    """Return a postcondition that objects to SECRET anywhere in a result."""

    @postcondition("*", id="no-secret", effect=effect, **options)
    def check(call: Any, result: Any) -> Verdict:
        return Verdict.fail("It holds a number.") if SECRET in _render(result) else Verdict.pass_()

    return check


def _render(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def without_secret(value: Any) -> Any:
    """Return the value with SECRET replaced wherever it stands."""
    match value:
        case str():
            return value.replace(SECRET, "[GONE]")
        case dict():
            return {key: without_secret(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(without_secret(item) for item in value)
    return value


def make_redacting_guard(*contracts: Contract) -> Edictum:
    return Edictum(contracts=[*contracts, no_secret("redact", redact=without_secret)])


class ReleasingSink:
    """Releases the tools when the end of a call is written down."""

    def __init__(self, tools: SuiteTools) -> None:
        self._tools = tools

    def emit(self, event: AuditEvent) -> None:
        if event.action in CLOSING:
            self._tools.release.set()


class BrokenGuard(Edictum):
    """A guard in which everything that an adapter could call raises."""

    def _broken(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("the guard is broken")

    run = run_sync = dispatch = dispatch_sync = begin = begin_sync = _broken


# --- Reading what happened ------------------------------------------------------------------------


def list_actions(guard: Edictum) -> list[str]:
    return [str(event.action) for event in guard.local_sink.events]


def get_last_event(guard: Edictum) -> AuditEvent:
    events = guard.local_sink.events
    assert events, "nothing was recorded: the call did not pass through the guard"
    return events[-1]


def count_executions(guard: Edictum) -> int:
    """Return how many calls were counted, in all sessions that are in the audit."""
    sessions = {event.session_id for event in guard.local_sink.events}
    return sum(guard.session(session_id).executions for session_id in sessions)


def list_open_calls(guard: Edictum) -> list[str]:
    """Return the calls that were allowed and never closed."""
    events = guard.local_sink.events
    ends = ("call_executed", "call_failed", "call_paused")
    ended = {event.call_id for event in events if event.action in ends}
    allowed = [event.call_id for event in events if event.action == "call_allowed"]
    return [call_id for call_id in allowed if call_id not in ended]


def parse_structure(text: str) -> Any:
    """Return the first JSON object in a text."""
    start = text.find('{"name"')
    assert start >= 0, f"no JSON object in {text!r}"
    return json.JSONDecoder().raw_decode(text[start:])[0]
