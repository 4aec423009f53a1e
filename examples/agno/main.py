"""An Agno agent whose tools are governed. It runs offline: the model plays a script.

python examples/agno/main.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse

from edictum import Edictum
from edictum.adapters import AgnoAdapter

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: file-reader}
defaults: {mode: enforce}
contracts:
  - id: no-dotenv
    type: pre
    tool: read_file
    when: {args.path: {ends_with: .env}}
    then: {effect: deny, message: "{args.path} holds secrets. Ask for another file."}
  - id: no-ssn
    type: post
    tool: read_file
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "The file holds a social security number."}
  - id: few-calls
    type: session
    limits: {max_tool_calls: 3}
    then: {effect: deny, message: "Three files are enough. Sum up what you have."}
"""


@dataclass
class ScriptedModel(Model):
    """Stands in for a real model: plays a list of responses, and keeps what it was shown."""

    id: str = "scripted"
    script: list[ModelResponse] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)

    def invoke(self, messages: Any, *_: Any, **__: Any) -> ModelResponse:
        self.seen.append(list(messages))
        return self.script[len(self.seen) - 1]

    async def ainvoke(self, messages: Any, *_: Any, **__: Any) -> ModelResponse:
        return self.invoke(messages)

    def invoke_stream(self, messages: Any, *_: Any, **__: Any) -> Any:
        yield self.invoke(messages)

    async def ainvoke_stream(self, messages: Any, *_: Any, **__: Any) -> Any:
        yield self.invoke(messages)

    def _parse_provider_response(self, response: Any, **_: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


def read_file(path: str) -> str:
    """Read a file."""
    return f"{path}: Ada Lovelace, 123-45-6789"


def ask(*paths: str) -> ModelResponse:
    """A turn in which the model asks for files, all at once."""
    asked = [("read_file", json.dumps({"path": path}), f"call_{path}") for path in paths]
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}
        for name, args, call_id in asked
    ]
    return ModelResponse(role="assistant", tool_calls=calls)


def main() -> None:
    guard = Edictum.from_yaml_string(RULES)
    adapter = AgnoAdapter(guard)

    done = ModelResponse(role="assistant", content="done")
    model = ScriptedModel(
        script=[ask("/people.txt"), ask("/srv/.env"), ask("/a", "/b", "/c"), done]
    )
    agent = Agent(
        model=model, tools=[read_file], tool_hooks=[adapter.as_tool_hook()], telemetry=False
    )

    print("self test:", adapter.self_test(agent))
    agent.run("Read the files.", session_id="conversation-1", user_id="ada")

    print("the model read:")
    for message in model.seen[-1]:
        if message.role == "tool":
            print(f"  {'error' if message.tool_call_error else 'success':7}  {message.content}")
    session = guard.session("conversation-1")
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
    main()
