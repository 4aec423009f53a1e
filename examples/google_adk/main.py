"""Agents of Google ADK whose tools are governed. It runs offline: the model plays a script.

python examples/google_adk/main.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import Field

from edictum import Edictum
from edictum.adapters import GoogleADKAdapter

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


class ScriptedModel(BaseLlm):
    """Stands in for a real model: plays a list of turns, and keeps what it was shown."""

    model: str = "scripted"
    script: list[list[types.Part]]
    seen: list[Any] = Field(default_factory=list)

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.seen.append([part for content in llm_request.contents for part in content.parts])
        yield LlmResponse(
            content=types.Content(role="model", parts=self.script[len(self.seen) - 1])
        )


def read_file(path: str) -> dict[str, str]:
    """Read a file."""
    return {"path": path, "text": "Ada Lovelace, 123-45-6789"}


def ask(*paths: str) -> list[types.Part]:
    """A turn in which the model asks for files, all at once."""
    return [
        types.Part(
            function_call=types.FunctionCall(
                name="read_file", args={"path": path}, id=f"call_{path}"
            )
        )
        for path in paths
    ]


def with_callbacks(adapter: GoogleADKAdapter) -> LlmAgent:
    """The other way: the callbacks of a single agent."""
    before, after, error = adapter.as_agent_callbacks()
    return LlmAgent(
        name="reader",
        tools=[read_file],
        before_tool_callback=before,
        after_tool_callback=after,
        on_tool_error_callback=error,
    )


async def main() -> None:
    guard = Edictum.from_yaml_string(RULES)
    adapter = GoogleADKAdapter(guard)

    model = ScriptedModel(
        script=[
            ask("/people.txt"),
            ask("/srv/.env"),
            ask("/a", "/b", "/c"),
            [types.Part(text="done")],
        ]
    )
    agent = LlmAgent(name="reader", model=model, tools=[read_file])
    app = App(name="files", root_agent=agent, plugins=[adapter.as_plugin()])
    runner = InMemoryRunner(app=app)

    print("self test:", adapter.self_test(runner))
    print("self test of the callbacks:", adapter.self_test(with_callbacks(adapter)))
    session = await runner.session_service.create_session(app_name="files", user_id="ada")
    said = types.Content(role="user", parts=[types.Part(text="Read the files.")])
    async for _ in runner.run_async(user_id="ada", session_id=session.id, new_message=said):
        pass

    print("the model read:")
    for part in model.seen[-1]:
        if part.function_response:
            print(f"  {part.function_response.response}")
    counts = guard.session(f"ada/{session.id}")
    print(
        f"counted: {counts.attempts} attempts, {counts.executions} executions, {counts.failures}"
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
