"""A process of its own for the tests of scopes: it makes its share of calls at once.

    python scope_worker.py '{"backend": "...", "log": "...", "prefix": "...", "calls": [[...], ...]}'

A call is [organisation, person, conversation]. Every body appends that to the log: what really ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from edictum import Edictum, Principal

config: dict[str, Any] = json.loads(sys.argv[1])
log = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
BUNDLE = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: refunds}
contracts:
  - id: conversation
    type: session
    limits: {max_calls_per_tool: {refund: 3}}
    then: {effect: deny, message: conversation}
  - id: person
    type: session
    scope: principal
    limits: {max_calls_per_tool: {refund: 10}, per: 1d}
    then: {effect: deny, message: person}
  - id: organisation
    type: session
    scope: org
    limits: {max_calls_per_tool: {refund: 100}}
    then: {effect: deny, message: organisation}
"""


async def refund(guard: Edictum, call: list[str]) -> str:
    org, user, conversation = (f"{config['prefix']} {name}" for name in call)

    async def body() -> str:
        os.write(log, f"{json.dumps(call)}\n".encode())
        if config.get("dies"):
            os._exit(9)
        await asyncio.sleep(0.002)
        return "done"

    principal = Principal(user_id=user, org_id=org)
    options: Any = {"session_id": conversation, "principal": principal}
    outcome = await guard.dispatch("refund", {}, body, **options)
    return getattr(outcome, "details", None) or "ran"


async def main() -> None:
    tools = {"refund": {"side_effect": config.get("side_effect", "irreversible")}}
    guard = Edictum.from_yaml_string(BUNDLE, backend=config["backend"], tools=tools)
    said = await asyncio.gather(*(refund(guard, call) for call in config["calls"]))
    await guard.close()
    print(json.dumps(said))


asyncio.run(main())
