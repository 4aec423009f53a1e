"""Handoffs of the OpenAI Agents SDK: the model asks for them like tools, and the answer is the next
agent.
"""

from __future__ import annotations

import copy
from inspect import currentframe
from typing import TYPE_CHECKING, Any

from edictum.adapters._reply import OnWarn
from edictum.adapters._wire import parse_json_args
from edictum.core.values import dumps, is_same

if TYPE_CHECKING:
    from edictum.adapters.openai_agents import OpenAIAgentsAdapter


def get_governors(item: Any) -> tuple[Any, ...]:
    """Return the adapters that govern an agent, a tool or a handoff."""
    return getattr(item, "governors", ())


def _get_filter(handoff: Any) -> Any:
    """Return the handoff's own filter; for a denial one that keeps all, in place of the run's.

    The SDK asks a handoff for its filter once it has been invoked, and takes the one of the
    RunConfig when there is none. It passes that to no handoff, agent or context; but it is a local
    variable of the function that asks, as is the agent that follows.
    """
    own, frame = vars(handoff).get("input_filter"), currentframe()
    asking = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}
    for_run = getattr(asking.get("run_config"), "handoff_input_filter", None)
    if own is None and for_run is not None and _has_denial(asking.get("new_agent")):
        return lambda data: data
    return own


def _set_filter(handoff: Any, value: Any) -> None:
    vars(handoff)["input_filter"] = value


FILTER = property(_get_filter, _set_filter)


def govern_handoff(adapter: OpenAIAgentsAdapter, item: Any, owner: Any, on_warn: OnWarn) -> Any:
    """Return a handoff that is a governed call and leads to a governed agent.

    The SDK wants an agent and asks the handoff for the text afterwards. So a denial is a copy of
    the owner that carries the text. A clone of an agent gets handoffs of its own.
    """
    is_handoff = hasattr(item, "on_invoke_handoff")
    governed = is_handoff and adapter in get_governors(item)
    if governed and item.owner is owner:
        return item
    plain = item.plain if governed else item
    is_handoff = hasattr(plain, "on_invoke_handoff")
    made = copy.copy(plain) if is_handoff else adapter.load("agents").handoff(plain)
    inner, write_message = made.on_invoke_handoff, made.get_transfer_message
    plain_filter = made.input_filter

    async def invoke(ctx: Any, text: str) -> Any:
        agent, args = copy.copy(owner), parse_json_args(text)
        about: Any = {"on_warn": on_warn, "context": ctx}

        async def body(checked: dict[str, Any]) -> Any:
            nonlocal agent
            following = await inner(ctx, text if is_same(checked, args) else dumps(checked))
            agent = adapter.govern(following, on_warn)
            return {"assistant": agent.name}

        if args is None:
            reply = await adapter.adeny_arguments(made.tool_name, text, **about)
        else:
            reply = await adapter.acall(made.tool_name, args, body, **about)
        reply.get()  # an exception of the handoff's own code ends the run, as without the adapter
        agent.denial = reply.text
        return agent

    kind = type(made)
    if getattr(kind, "input_filter", None) is not FILTER:
        made.__class__ = type("GovernedHandoff", (kind,), {"input_filter": FILTER})
    made.get_transfer_message = lambda agent: agent.denial or write_message(agent)
    if plain_filter is not None:
        made.input_filter = lambda data: data if _is_denied(data) else plain_filter(data)
    made.on_invoke_handoff, made.plain, made.owner = invoke, plain, owner
    made.governors = (adapter, *(vars(plain).get("governors", ())))
    return made


def _is_denied(data: Any) -> bool:
    """Return whether a handoff was denied: a filter might hide the reason from its owner."""
    last = data.new_items[-1] if data.new_items else None
    return _has_denial(getattr(last, "target_agent", None))


def _has_denial(agent: Any) -> bool:
    return getattr(agent, "denial", None) is not None


def list_parameters(tools: list[Any]) -> dict[str, Any]:
    """Return the schemas of function tools by name; other tools are not called by the SDK."""
    known = (tool for tool in tools if hasattr(tool, "params_json_schema"))
    return {tool.name: tool.params_json_schema for tool in known}
