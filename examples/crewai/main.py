"""A CrewAI crew whose tools are governed. It runs offline: the model plays a script.

python examples/crewai/main.py
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

# CrewAI reads its environment when it is imported.
os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TRACING_ENABLED": "false",
}
os.environ.setdefault("CREWAI_STORAGE_DIR", tempfile.mkdtemp())

from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool
from pydantic import PrivateAttr

from edictum import Edictum
from edictum.adapters import CrewAIAdapter

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


class ScriptedModel(BaseLLM):
    """Stands in for a real model: plays a list of turns, and keeps what it was shown."""

    _script: list[Any] = PrivateAttr(default_factory=list)
    _seen: list[Any] = PrivateAttr(default_factory=list)

    def supports_function_calling(self) -> bool:
        return True

    def call(self, messages: Any, *args: Any, **options: Any) -> Any:
        self._seen.append(list(messages))
        return self._script[len(self._seen) - 1]

    async def acall(self, messages: Any, *args: Any, **options: Any) -> Any:
        return self.call(messages)


@tool("read_file")
def read_file(path: str) -> str:
    """Read a file."""
    return f"{path}: Ada Lovelace, 123-45-6789"


def ask(*paths: str) -> list[dict[str, Any]]:
    """A turn in which the model asks for files, all at once."""
    functions = [{"name": "read_file", "arguments": json.dumps({"path": path})} for path in paths]
    return [
        {"id": f"call_{path}", "type": "function", "function": function}
        for path, function in zip(paths, functions, strict=True)
    ]


def main() -> None:
    model = ScriptedModel(model="scripted")
    model._script = [ask("/people.txt"), ask("/srv/.env"), ask("/a", "/b", "/c"), "done"]

    guard = Edictum.from_yaml_string(RULES)
    adapter = CrewAIAdapter(guard)

    reader = Agent(
        role="reader", goal="Read files.", backstory="You read files.", llm=model, tools=[read_file]
    )
    crew = Crew(
        agents=[reader],
        tasks=[Task(description="Read the files.", expected_output="A summary.", agent=reader)],
    )
    adapter.wrap_tools(crew)

    print("self test:", adapter.self_test(crew))
    output = crew.kickoff()

    print("the model read:")
    for message in model._seen[-1]:
        if message["role"] == "tool":
            print(f"  {message['content']}")
    session = guard.session(adapter.session_id)
    print(
        f"counted: {session.attempts} attempts, {session.executions} executions, {session.failures}"
        " failures"
    )
    print("failures of the task:", len(output.tasks_output[0].tool_failures))


if __name__ == "__main__":
    main()
