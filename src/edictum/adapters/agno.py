"""Agno: ``govern(agent)``, or one hook for agents, teams and single tools."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isasyncgen, iscoroutinefunction
from typing import Any, ClassVar

from edictum.adapters._agno_call import AgnoExchange, Pieces
from edictum.adapters._agno_pausing import HOOK_WAITS, let_model_pause, make_confirmed_park
from edictum.adapters._base import Adapter
from edictum.adapters._canary import CANARY
from edictum.adapters._identity import Identity
from edictum.adapters._reply import OnWarn, ToolReply
from edictum.execution.portal import PORTAL

# what an AgentRunException brings to the model beside its text
CARRIED = ("user_message", "agent_message", "messages")


class AgnoAdapter(Adapter):
    """Governs an agent: ``AgnoAdapter(guard).govern(agent)``, or ``Agent(tool_hooks=[...])`` with
    ``as_tool_hook()``, whose calls wait for people.

    RetryAgentRun and StopAgentRun are recorded as failures: a call that is given its slot back for
    them could be repeated without end.
    """

    requires: ClassVar = {"agno": ("3.1", "4")}

    context_name: ClassVar = "Agno's RunContext"

    def identify(self, context: Any) -> Identity:
        return Identity(context.session_id, context.user_id)

    def with_redacted_text(self, error: BaseException, text: str) -> BaseException:
        for name in CARRIED:
            if getattr(error, name, None) is not None:
                setattr(error, name, None)  # written by the same tool, and read by the same model
        return super().with_redacted_text(error, text)

    def make_park(self, context: Any) -> str:
        """Return why calls wait that cannot pause: only the model of a governed agent is asked
        ahead.
        """
        return HOOK_WAITS

    def govern(self, target: Any, on_postcondition_warn: OnWarn = None) -> Any:
        """Govern this agent, or this team and its members: put the hook first, and let runs pause
        for calls that ask a person.
        """
        hook = self.as_tool_hook(on_postcondition_warn)
        get_model = self.load("agno.models.utils").get_model
        for agent in _list_agents(target):
            if not any(getattr(it, "governor", None) is self for it in agent.tool_hooks or ()):
                agent.tool_hooks = [hook, *(agent.tool_hooks or ())]
            agent.model = get_model(agent.model)
            if agent.model is not None:
                let_model_pause(self, agent.model)
        return target

    def as_tool_hook(self, on_postcondition_warn: OnWarn = None) -> Callable[..., Any]:
        """Return the hook for ``tool_hooks=[...]``; put it first."""
        self.load("agno")

        def edictum_hook(
            function_name: str,
            function_call: Callable[..., Any],
            arguments: dict[str, Any],
            run_context: Any = None,
        ) -> Any:
            args = arguments or {}
            about = (on_postcondition_warn, run_context)
            call = AgnoExchange(function_name, function_call, args, *about)
            if self.is_around(call.made_by, args):
                return function_call(**args)
            if (park := make_confirmed_park(self, call.made_by)) is not None:
                call.details["park"] = park
            return self._arun(call) if iscoroutinefunction(function_call) else self._run(call)

        vars(edictum_hook)["governor"] = self
        return edictum_hook

    def _run(self, call: AgnoExchange) -> Any:
        def body(checked: dict[str, Any]) -> Any:
            with self.around(call.made_by, checked):
                returned = call.run(checked)
            return call.take(returned)

        return self._answer(call, self.call(call.name, call.args, body, **call.details))

    async def _arun(self, call: AgnoExchange) -> Any:
        async def body(checked: dict[str, Any]) -> Any:
            with self.around(call.made_by, checked):
                returned = await call.run(checked)
            if isasyncgen(returned):
                returned = Pieces([piece async for piece in returned], asynchronous=True)
            return call.take(returned)

        return self._answer(call, await self.acall(call.name, call.args, body, **call.details))

    def _answer(self, call: AgnoExchange, reply: ToolReply) -> Any:
        """Raise a denial as the one exception that Agno does not log with a traceback."""
        if reply.text is not None and reply.failed:
            raise self.load("agno.exceptions").AgentRunException(reply.text)
        return call.answer(reply)

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Ask the hooks of the agent, or of each of its tools, and of each member of a team."""
        found = (
            [[self.as_tool_hook()]]
            if target is None
            else [hooks for agent in _list_agents(target) for hooks in _list_hooks(agent)]
        )
        ways = ("run", "arun")
        return self._find_worst(self._ask(tool, hooks, way) for hooks in found for way in ways)

    def _ask(self, tool: Callable[[], str], hooks: Any, way: str) -> str:
        models = self.load("agno.models.base")
        response = self.load("agno.models.response").ModelResponse
        function = {"name": CANARY, "arguments": "{}"}
        asked = [{"id": CANARY, "type": "function", "function": function}]
        read: list[str] = []

        def play(messages: Any) -> Any:
            read.append(str([message.content for message in messages if message.role == "tool"]))
            said = {"tool_calls": asked} if len(read) == 1 else {"content": "done"}
            return response(role="assistant", **said)

        class CanaryModel(models.Model):  # type: ignore[misc, name-defined]  # known at run time
            def invoke(self, messages: Any, *_: Any, **__: Any) -> Any:
                return play(messages)

            async def ainvoke(self, messages: Any, *_: Any, **__: Any) -> Any:
                return play(messages)

            invoke_stream = ainvoke_stream = invoke
            _parse_provider_response = _parse_provider_response_delta = invoke

        made = self.load("agno.tools.function").Function(name=CANARY, entrypoint=tool)
        agent = self.load("agno.agent").Agent(
            model=CanaryModel(id=CANARY), tools=[made], tool_hooks=hooks, telemetry=False
        )
        _ = agent.run("canary") if way == "run" else PORTAL.run(agent.arun("canary"))
        return read[-1]


def _list_agents(agent: Any) -> list[Any]:
    members = getattr(agent, "members", None) or ()
    return [agent, *(inner for member in members for inner in _list_agents(member))]


def _list_hooks(agent: Any) -> list[Any]:
    """Return the agent's hooks, which replace those of its tools, or else those of each tool."""
    if agent.tool_hooks is not None:
        return [agent.tool_hooks]
    return [getattr(tool, "tool_hooks", None) for tool in agent.tools or ()]
