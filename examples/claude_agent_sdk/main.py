"""An agent of the Claude Agent SDK whose tools are governed. The real CLI runs, offline: the model
plays a script.

python examples/claude_agent_sdk/main.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, create_sdk_mcp_server, tool
from scripted_model import ScriptedModel

from edictum import Edictum
from edictum.adapters import ClaudeAgentSDKAdapter

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: people}
defaults: {mode: enforce}
contracts:
  - id: no-boss
    type: pre
    tool: mcp__people__find_person
    when: {args.name: {equals: boss}}
    then: {effect: deny, message: "Nobody looks up the boss."}
  - id: no-deleting
    type: pre
    tool: Bash
    when: {args.command: {contains: "rm "}}
    then: {effect: deny, message: "Nothing is deleted here."}
  - id: no-ssn
    type: post
    tool: "*"
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "The output holds a social security number."}
"""

FIND = "mcp__people__find_person"
SCRIPT: Any = [
    [(FIND, {"name": "ada"}, "call_1")],
    [(FIND, {"name": "boss"}, "call_2"), ("Bash", {"command": "rm -r /srv"}, "call_3")],
    [("Bash", {"command": "echo ada 123-45-6789"}, "call_4")],
]


@tool("find_person", "Find a person.", {"name": str})
async def find_person(args: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"{args['name']}, 123-45-6789"}]}


async def main() -> None:
    guard = Edictum.from_yaml_string(RULES)
    adapter = ClaudeAgentSDKAdapter(guard)
    model = ScriptedModel(SCRIPT)

    options = ClaudeAgentOptions(
        hooks=adapter.to_sdk_hooks(),
        mcp_servers={
            "people": create_sdk_mcp_server("people", tools=adapter.wrap_tools([find_person]))
        },
        allowed_tools=["mcp__people__find_person", "Bash"],
        env=model.env(),
        setting_sources=[],
    )

    print("self test:", adapter.self_test(options))
    async with ClaudeSDKClient(options) as client:
        await client.query("Look up the people.")
        answer = [message async for message in client.receive_response()]
    model.close()

    print("the model read:")
    for result in model.read.values():
        content = result["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        print(f"  {'error' if result.get('is_error') else 'ok':5}  {text.splitlines()[0]}")
    session = guard.session(answer[-1].session_id)
    print(
        f"counted: {session.attempts} attempts, {session.executions} executions, {session.failures}"
        " failures"
    )
    print(
        "audit:",
        *(
            f"{event.action}({event.call_id})"
            for event in guard.local_sink.events
            if event.action == "call_denied"
        ),
    )


if __name__ == "__main__":
    asyncio.run(main())
