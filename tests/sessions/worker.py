"""A process of its own for the contention and crash tests: it makes governed calls whose bodies
keep a log of their own.

    python worker.py '{"backend": "...", "log": "...", "coroutines": 50, "each": 20, "threads": 20,
    "each_thread": 25, ...}'

Every body appends one line to the log when it starts and one when it ends, in a single write each:
what really ran.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from collections import Counter
from typing import Any

from edictum import Edictum, OperationLimits, Verdict, precondition
from edictum.outcomes import ToolDenied

config: dict[str, Any] = json.loads(sys.argv[1])
log = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
outcomes: Counter[str] = Counter()
BUNDLE = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: contention}}
defaults: {{mode: enforce}}
contracts:
  - {{id: window, type: session, limits: {{max_tool_calls: {calls}, per: 1h}}, then: {{effect: deny, message: full}}}}
"""


def note(line: str) -> None:
    os.write(log, f"{line}\n".encode())


@precondition("*")
def not_forbidden(call: Any) -> Verdict:
    return Verdict.fail("forbidden") if call.args["plan"] == "forbidden" else Verdict.pass_()


async def body(name: str, plan: str) -> dict[str, Any]:
    note(f"start {name}")
    await asyncio.sleep(30 if plan == "cancel" else 0.002)
    note(f"{'failure' if plan == 'fail' else 'success'} {name}")
    return {"error": "asked to fail"} if plan == "fail" else {"ok": True}


def sync_body(name: str, plan: str) -> dict[str, Any]:
    note(f"start {name}")
    note(f"{'failure' if plan == 'fail' else 'success'} {name}")
    return {"error": "asked to fail"} if plan == "fail" else {"ok": True}


def plan_of(number: int, threaded: bool) -> str:
    """20 % failures, 10 % cancellations, 5 % denied by a contract."""
    if not config.get("mixed"):
        return "succeed"
    place = number % 20
    if place < 4 or (threaded and place < 6):
        return "fail"
    return "cancel" if place < 6 else "forbidden" if place == 6 else "succeed"


def make_guard() -> Edictum:
    limits = OperationLimits(
        **{"max_attempts": None, "max_tool_calls": None, **config.get("limits", {})}
    )
    options: dict[str, Any] = {
        "contracts": [not_forbidden],
        "limits": limits,
        "backend": config["backend"],
    }
    if "window" in config:
        return Edictum.from_yaml_string(BUNDLE.format(calls=config["window"]), **options)
    return Edictum(**options)


def count(outcome: Any) -> None:
    outcomes[outcome.reason if isinstance(outcome, ToolDenied) else type(outcome).__name__] += 1


async def coroutine(guard: Edictum, who: int) -> None:
    for number in range(config["each"]):
        plan = plan_of(who + number, threaded=False)
        args = {"name": f"{os.getpid()}-c{who}-{number}", "plan": plan}
        task = asyncio.create_task(guard.dispatch("work", args, body, session_id=config["session"]))
        if plan == "cancel":
            await asyncio.wait({task}, timeout=0.1)
            task.cancel()
        try:
            count(await task)
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1


def thread(guard: Edictum, who: int) -> None:
    for number in range(config["each_thread"]):
        args = {
            "name": f"{os.getpid()}-t{who}-{number}",
            "plan": plan_of(who + number, threaded=True),
        }
        count(guard.dispatch_sync("work", args, sync_body, session_id=config["session"]))


def fill(guard: Edictum) -> None:
    """Make calls that succeed, one after the other, until one is refused."""
    for number in itertools.count():
        args = {"name": f"{os.getpid()}-f{number}", "plan": "succeed"}
        outcome = guard.dispatch_sync("work", args, sync_body, session_id=config["session"])
        count(outcome)
        if isinstance(outcome, ToolDenied):
            return


async def main() -> None:
    guard = make_guard()
    if config.get("fill"):
        await asyncio.to_thread(fill, guard)
    threads = [
        threading.Thread(target=thread, args=(guard, who)) for who in range(config["threads"])
    ]
    for it in threads:
        it.start()
    await asyncio.gather(*(coroutine(guard, who) for who in range(config["coroutines"])))
    await asyncio.to_thread(lambda: [it.join() for it in threads])
    await guard.close()
    print(json.dumps(outcomes))


asyncio.run(main())
