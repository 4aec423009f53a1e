"""A FastMCP server whose tools are governed. It runs offline: a client plays a script, as an agent
would.

python examples/fastmcp/main.py
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ.update(
    FASTMCP_CHECK_FOR_UPDATES="off", FASTMCP_LOG_LEVEL="CRITICAL"
)  # read when it is imported

from fastmcp import Client, FastMCP

from edictum import Edictum
from edictum.adapters import FastMCPAdapter

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: people}
defaults: {mode: enforce}
contracts:
  - id: no-boss
    type: pre
    tool: find_person
    when: {args.name: {equals: boss}}
    then: {effect: deny, message: "Nobody looks up the boss."}
  - id: no-ssn
    type: post
    tool: find_person
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "The record holds a social security number."}
  - id: few-calls
    type: session
    limits: {max_tool_calls: 3}
    then: {effect: deny, message: "Three people are enough. Sum up what you have."}
"""

SCRIPT = [["ada"], ["boss"], ["bob", "eve", "tim"]]

server = FastMCP("people")


@server.tool
def find_person(name: str) -> dict[str, str]:
    """Find a person."""
    return {"name": name, "ssn": "123-45-6789"}


async def play() -> list[Any]:
    """Stands in for an agent: asks for people, all of a turn at once, and keeps what it reads."""
    read: list[Any] = []
    async with Client(server) as client:
        for names in SCRIPT:
            read += await asyncio.gather(
                *(
                    client.call_tool("find_person", {"name": name}, raise_on_error=False)
                    for name in names
                )
            )
    return read


def main() -> None:
    guard = Edictum.from_yaml_string(RULES)
    adapter = FastMCPAdapter(guard)

    server.add_middleware(adapter.as_middleware())

    print("self test:", adapter.self_test(server))

    print("the client read:")
    for result in asyncio.run(play()):
        print(
            f"  {'error' if result.is_error else 'ok':5}  {result.content[0].text} "
            f" {result.structured_content or ''}"
        )
    session = guard.session(adapter.session_id)
    print(
        f"counted: {session.attempts} attempts, {session.executions} executions, {session.failures}"
        " failures"
    )
    print(
        "audit:",
        *(
            f"{event.action}({event.tool_args})"
            for event in guard.local_sink.events
            if event.action == "call_denied"
        ),
    )


if __name__ == "__main__":
    main()
