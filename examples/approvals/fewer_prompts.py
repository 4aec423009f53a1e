"""A hundred calls of a support agent, asked about twice: by a first policy, and by a better one.

No model, no key. The first policy asks about every tool that touches orders or customers, and the
person says yes once each time. The second one knows which tools only read, and the person lets a
yes count for further calls where that is safe: refunds up to 50, mails to the customer at hand. The
same calls are denied in both.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from edictum import Edictum, Principal, ToolDenied
from edictum.approval import ApprovalQueue, GrantTerms, QueuedApproval, open_approvals

HEAD = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: support}
defaults: {mode: enforce}
tools:
  search_help: {side_effect: read}
  read_order: {side_effect: read}
  refund: {side_effect: irreversible}
  send_mail: {side_effect: irreversible}
  close_account: {side_effect: irreversible}
contracts:
  - id: no-large-refunds
    type: pre
    tool: refund
    when: {args.amount: {gt: 500}}
    then: {effect: deny, message: "{args.amount} is more than an agent may refund."}
"""
ASK_ALWAYS = """\
  - id: ask
    type: pre
    tools: [read_order, refund, send_mail, close_account]
    then: {effect: approve, message: "May the agent do this?", timeout: 60s}
"""
ASK_FOR_EFFECTS = """\
  - id: ask
    type: pre
    tools: [refund, send_mail, close_account]
    then: {effect: approve, message: "May the agent do this?", timeout: 60s}
"""
AGENT, ANN = Principal("support-agent"), Principal("ann", role="support-lead")
Answer = dict[str, Any]


def list_calls() -> list[tuple[str, dict[str, Any]]]:
    """Return the hundred calls: mostly reading, now and then something that cannot be undone."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for number in range(10):  # ten customers, ten calls each
        calls += [("search_help", {"query": f"question {number}.{part}"}) for part in range(6)]
        calls.append(("read_order", {"order": f"A-{number}"}))
        calls.append(("search_help", {"query": f"policy {number}"}))
        amount = 900 if number == 3 else 20 + number
        calls.append(("refund", {"order": f"A-{number}", "amount": amount}))
        if number in (0, 2, 4, 6):
            calls.append(("send_mail", {"to": f"customer{number}@shop.example", "text": "Done."}))
        elif number in (5, 8):
            calls.append(("close_account", {"customer": f"C-{number}"}))
        else:
            calls.append(("search_help", {"query": f"anything else {number}"}))
    return calls


@dataclass
class Run:
    """What one pass through the calls has come to."""

    prompts: int = 0
    per_100: float = 0.0
    by_grant: int = 0
    denied: list[tuple[str, str]] = field(default_factory=list)


def answer_once(request: QueuedApproval) -> Answer:
    """Close no account, and say yes to the rest, one by one."""
    return {"approved": request.tool_name != "close_account"}


def answer_with_grants(request: QueuedApproval) -> Answer:
    """Answer as ``answer_once``, and let a yes count for calls that are like it."""
    until = datetime.now(UTC) + timedelta(minutes=15)
    patterns: dict[str, dict[str, Any]] = {
        "refund": {"order": "A-*", "amount": {"at_most": 50}},
        "send_mail": {"to": "*@shop.example"},
    }
    answer = answer_once(request)
    if answer["approved"] and request.tool_name in patterns:
        answer["grant"] = GrantTerms(args=patterns[request.tool_name], until=until)
    return answer


async def answer_all(queue: ApprovalQueue, decide: Callable[[QueuedApproval], Answer]) -> None:
    """Be the person: answer what is asked, until the task is cancelled."""
    while True:
        for request in await queue.pending():
            await queue.answer(request.approval_id, approver=ANN, **decide(request))
        await asyncio.sleep(0.005)


async def play(policy: str, decide: Callable[[QueuedApproval], Answer]) -> Run:
    """Make the hundred calls under a policy, with a person who answers."""
    queue = open_approvals(f"sqlite:///{tempfile.mkdtemp()}/approvals.db")
    guard = Edictum.from_yaml_string(HEAD + policy, approval_backend=queue, principal=AGENT)
    person = asyncio.create_task(answer_all(queue, decide))
    run = Run()
    for tool, args in list_calls():
        outcome = await guard.dispatch(tool, args, lambda **_: "done")
        if isinstance(outcome, ToolDenied):
            run.denied.append((tool, str(args)))
    person.cancel()
    await asyncio.gather(person, return_exceptions=True)
    stats = guard.stats()
    run.prompts, run.per_100 = stats.prompts, stats.prompts_per_100 or 0.0
    run.by_grant = len(guard.local_sink.filter("call_grant_used"))
    await guard.close()
    return run


def show(name: str, run: Run) -> None:
    print(
        f"{name:<32} {run.prompts:>3} prompts, {run.per_100:5.1f} per 100 consequential calls,"
        f" {run.by_grant:>2} by a grant, {len(run.denied)} denied"
    )


async def main() -> None:
    before = await play(ASK_ALWAYS, answer_once)
    after = await play(ASK_FOR_EFFECTS, answer_with_grants)
    print(f"{len(list_calls())} calls")
    show("ask about everything", before)
    show("read-only tools, and grants", after)
    print("the same calls were denied:", before.denied == after.denied)
    for tool, args in after.denied:
        print(f"  {tool} {args}")


if __name__ == "__main__":
    asyncio.run(main())
