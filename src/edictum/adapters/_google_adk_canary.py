"""The canary of Google ADK."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edictum.adapters._canary import CANARY
from edictum.execution.portal import PORTAL

Load = Callable[[str], Any]


def ask_adk_agents(
    load: Load, target: Any, plugins: Sequence[Any], tool: Callable[[], str]
) -> Iterator[str]:
    """Ask every agent, with its callbacks and the runner's plugins; yield what its model reads."""
    manager = getattr(target, "plugin_manager", None)
    wired = plugins if manager is None else manager.plugins
    unset = load("google.adk.plugins.base_plugin").BasePlugin.before_tool_callback
    seeing = [plugin for plugin in wired if type(plugin).before_tool_callback is not unset]
    kind = load("google.adk.agents").LlmAgent
    inside = _list_agents(getattr(target, "agent", target))
    for agent in [agent for agent in inside if isinstance(agent, kind)] or [None]:
        before = getattr(agent, "before_tool_callback", None)
        yield PORTAL.run(_ask(load, seeing, before, tool))


async def _ask(load: Load, plugins: list[Any], before: Any, tool: Callable[[], str]) -> str:
    types, models = load("google.genai").types, load("google.adk.models")
    read: list[str] = []

    class CanaryModel(models.BaseLlm):  # type: ignore[misc, name-defined]  # known at run time
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            read.append(str(llm_request.contents[1:]))
            call = types.Part(function_call=types.FunctionCall(name=CANARY, args={}, id=CANARY))
            part = call if len(read) == 1 else types.Part(text="done")
            yield models.LlmResponse(content=types.Content(role="model", parts=[part]))

    made = load("google.adk.tools").FunctionTool(tool)
    made.name = CANARY
    agent = load("google.adk.agents").LlmAgent(
        name=CANARY, model=CanaryModel(model=CANARY), tools=[made], before_tool_callback=before
    )
    app = load("google.adk.apps").App(name=CANARY, root_agent=agent, plugins=plugins)
    runner = load("google.adk.runners").InMemoryRunner(app=app)
    session = await runner.session_service.create_session(app_name=CANARY, user_id=CANARY)
    said = types.Content(role="user", parts=[types.Part(text="canary")])
    async for _ in runner.run_async(user_id=CANARY, session_id=session.id, new_message=said):
        pass
    return read[-1]


def _list_agents(agent: Any) -> list[Any]:
    below = getattr(agent, "sub_agents", ())
    return [agent, *(inner for child in below for inner in _list_agents(child))]
