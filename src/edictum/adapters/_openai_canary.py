"""The canary of the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from edictum.adapters._canary import CANARY
from edictum.execution.portal import PORTAL


def ask_openai_agent(
    load: Callable[[str], Any], agent: Any, tool: Callable[[], str]
) -> Iterator[str]:
    """Put the canary in the place of each tool and MCP server; yield what the model reads."""
    agents, testing = load("agents"), load("agents.testing")
    lists = ("handoffs", "mcp_servers", "input_guardrails", "output_guardrails")
    blank: dict[str, Any] = {
        **{key: [] for key in lists},
        **dict.fromkeys(("instructions", "prompt", "hooks", "output_type")),
        "tool_use_behavior": "run_llm_again",
    }
    asked = [testing.function_call(CANARY, {}, call_id=CANARY)]
    config = agents.RunConfig(tracing_disabled=True)
    for item in [*agent.tools, *agent.mcp_servers] or [None]:
        rails = ("tool_input_guardrails", "tool_output_guardrails")
        with_rails = {key: getattr(item, key, None) for key in rails}
        canary = agents.function_tool(tool, name_override=CANARY, **with_rails)
        model = testing.ScriptedModel([asked, [testing.assistant_message("done")]])
        alone = agent.clone(**blank, model=model, tools=[canary])
        PORTAL.run(agents.Runner.run(alone, "canary", run_config=config))
        yield str(model.calls[-1].input)
