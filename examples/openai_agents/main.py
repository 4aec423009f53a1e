"""An agent of the OpenAI Agents SDK whose tools are governed. It runs offline: the model plays a
script.

python examples/openai_agents/main.py
"""

from __future__ import annotations

from typing import Any

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from edictum import Edictum
from edictum.adapters import OpenAIAgentsAdapter

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


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"{path}: Ada Lovelace, 123-45-6789"


def ask(*paths: str) -> list[Any]:
    """A turn in which the model asks for files, all at once."""
    return [function_call("read_file", {"path": path}, call_id=f"call_{path}") for path in paths]


def with_guardrails(adapter: OpenAIAgentsAdapter) -> Agent[Any]:
    """The other way: single function tools, as the SDK's own guardrails are wired."""
    check_input, check_output = adapter.as_guardrails()

    @function_tool(tool_input_guardrails=[check_input], tool_output_guardrails=[check_output])
    def list_files(path: str) -> str:
        """List a folder."""
        return f"{path}: people.txt"

    return Agent(name="lister", tools=[list_files])


def main() -> None:
    guard = Edictum.from_yaml_string(RULES)
    adapter = OpenAIAgentsAdapter(guard)

    model = ScriptedModel(
        [ask("/people.txt"), ask("/srv/.env"), ask("/a", "/b", "/c"), [assistant_message("done")]]
    )
    agent = Agent(name="reader", model=model, tools=[read_file])
    adapter.govern(agent)

    print("self test:", adapter.self_test(agent))
    print("self test of the guardrails:", adapter.self_test(with_guardrails(adapter)))
    config = RunConfig(group_id="conversation-1", tracing_disabled=True)
    Runner.run_sync(agent, "Read the files.", run_config=config)

    print("the model read:")
    for item in model.calls[-1].input:
        if item.get("type") == "function_call_output":
            print(f"  {item['output']}")
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
