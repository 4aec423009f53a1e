"""Google ADK: a plugin for a runner, or callbacks for one agent.

ADK's callbacks stand before and after a tool. They hear nothing of a tool that takes too long, and
a confirmation, another callback or an exception may come between them. So the callback before the
tool only marks the call: the guard stands in ``run_async`` of the tool, the one place where ADK
runs any tool, in every mode. There it checks the arguments that the tool gets, after all callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn
from edictum.execution.portal import PORTAL

MARKS = "_edictum"  # on the context of a call: who governs the run of which tool


class Waiting(Exception):
    """The tool asked for a confirmation or a credential; ADK runs it again with the answer."""


class GoogleADKAdapter(Adapter):
    """Governs all agents of a runner: ``App(name=..., root_agent=agent,
    plugins=[GoogleADKAdapter(guard).as_plugin()])``.
    """

    requires: ClassVar = {"google-adk": ("2.13", "3")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return Waiting, self.load("google.adk.workflow._errors").NodeInterruptedError

    def as_plugin(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        """For ``App(plugins=[...])``: every agent, sub-agent and workflow node of the runner."""
        adapter = self

        class EdictumPlugin(self.load("google.adk.plugins.base_plugin").BasePlugin):  # type: ignore[misc]
            async def before_tool_callback(
                self, *, tool: Any, tool_args: Any, tool_context: Any
            ) -> None:
                adapter._mark(tool, tool_context, on_postcondition_warn)

        return EdictumPlugin(name=self.label)

    def as_agent_callbacks(
        self, on_postcondition_warn: OnWarn | None = None
    ) -> tuple[Any, Any, Any]:
        """``before_tool_callback``, ``after_tool_callback`` and ``on_tool_error_callback`` of an
        ``LlmAgent``.

        The first one does all of the work. The others are there for those who pass all three, and
        change nothing.
        """

        def before(tool: Any, args: Any, tool_context: Any) -> None:
            self._mark(tool, tool_context, on_postcondition_warn)

        def after(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
            """The guard has judged the result already."""

        def error(tool: Any, args: Any, tool_context: Any, error: BaseException) -> None:
            """The guard has recorded the exception already."""

        return before, after, error

    def _mark(self, tool: Any, context: Any, on_warn: OnWarn | None) -> None:
        """This run of the tool is ours. The tool may serve other agents and other guards: what it
        does without a mark is unchanged.
        """
        if not hasattr(type(tool), "runs_marked"):
            kind: Any = type(tool)
            tool.__class__ = _marked(kind)
        marks = vars(context).setdefault(MARKS, {}).setdefault(id(tool), {})
        marks[self] = on_warn

    async def _run(
        self,
        tool: Any,
        args: dict[str, Any],
        context: Any,
        inner: Callable[[dict[str, Any]], Any],
        on_warn: Any,
    ) -> Any:
        async def body(checked: dict[str, Any]) -> Any:
            value = await inner(checked)
            asked = (
                context.actions.requested_tool_confirmations.keys()
                | context.actions.requested_auth_configs.keys()
            )
            if context.function_call_id in asked:
                raise Waiting(value)
            return value

        try:
            reply = await self.acall(
                tool.name, args, body, call_id=context.function_call_id, flag=_flag, on_warn=on_warn
            )
        except Waiting as waiting:
            return waiting.args[0]
        return (
            reply.get()
            if reply.text is None
            else {"error" if reply.failed else "result": reply.text}
        )

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Every agent is asked, with its callbacks and with the plugins on a tool's way; the worst
        answer counts.
        """
        agents, base = (
            self.load("google.adk.agents"),
            self.load("google.adk.plugins.base_plugin").BasePlugin,
        )
        plugins = (
            target.plugin_manager.plugins
            if hasattr(target, "plugin_manager")
            else [self.as_plugin()]
            if target is None
            else []
        )
        plugins = [
            plugin
            for plugin in plugins
            if type(plugin).before_tool_callback is not base.before_tool_callback
        ]
        inside = [
            item
            for item in _tree(getattr(target, "agent", target))
            if isinstance(item, agents.LlmAgent)
        ]
        texts = [
            PORTAL.run(self._ask(tool, plugins, getattr(agent, "before_tool_callback", None)))
            for agent in inside or [None]
        ]
        return min(texts, key=lambda text: self._canary_text in text)

    async def _ask(self, tool: Callable[[], str], plugins: Sequence[Any], before: Any) -> str:
        types, models = self.load("google.genai").types, self.load("google.adk.models")
        read: list[str] = []

        class CanaryModel(models.BaseLlm):  # type: ignore[misc, name-defined]
            async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                read.append(str(llm_request.contents[1:]))
                call = types.Part(function_call=types.FunctionCall(name=CANARY, args={}, id=CANARY))
                part = call if len(read) == 1 else types.Part(text="done")
                yield models.LlmResponse(content=types.Content(role="model", parts=[part]))

        made = self.load("google.adk.tools").FunctionTool(tool)
        made.name = CANARY
        agent = self.load("google.adk.agents").LlmAgent(
            name=CANARY, model=CanaryModel(model=CANARY), tools=[made], before_tool_callback=before
        )
        app = self.load("google.adk.apps").App(name=CANARY, root_agent=agent, plugins=list(plugins))
        runner = self.load("google.adk.runners").InMemoryRunner(app=app)
        session = await runner.session_service.create_session(app_name=CANARY, user_id=CANARY)
        said = types.Content(role="user", parts=[types.Part(text="canary")])
        async for _ in runner.run_async(user_id=CANARY, session_id=session.id, new_message=said):
            pass
        return read[-1]


@cache
def _marked(kind: Any) -> Any:
    """The tool's class with a ``run_async`` that obeys marks. A class, so that copies of a tool
    obey them too.
    """

    class Marked(kind):  # type: ignore[misc]
        runs_marked = True

        async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
            async def plain(given: dict[str, Any]) -> Any:
                return await super(Marked, self).run_async(args=given, tool_context=tool_context)

            run: Callable[[dict[str, Any]], Any] = plain
            for adapter, on_warn in vars(tool_context).get(MARKS, {}).pop(id(self), {}).items():
                run = _around(adapter, self, tool_context, run, on_warn)
            return await run(args)

    Marked.__name__, Marked.__qualname__ = kind.__name__, kind.__qualname__
    return Marked


def _around(
    adapter: Any, tool: Any, context: Any, inner: Any, on_warn: Any
) -> Callable[[dict[str, Any]], Any]:
    return lambda args: adapter._run(tool, args, context, inner, on_warn)


def _flag(value: Any) -> str | None:
    """How ADK's own tools and MCP tools say that they failed."""
    if not isinstance(value, dict):
        return None
    failed = {
        "error": value.get("error"),
        "status": str(value.get("status")).lower() == "error",
        "isError": value.get("isError") is True,
    }
    return next((f"{key} is set" for key, found in failed.items() if found), None)


def _tree(agent: Any) -> list[Any]:
    return [agent, *(inner for child in getattr(agent, "sub_agents", ()) for inner in _tree(child))]
