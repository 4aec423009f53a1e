"""Adapters: one per framework. Each only translates; every rule, event and counter is the guard's.

Importing an adapter does not import its framework; wiring it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edictum.adapters.agno import AgnoAdapter as AgnoAdapter
    from edictum.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter as ClaudeAgentSDKAdapter
    from edictum.adapters.crewai import CrewAIAdapter as CrewAIAdapter
    from edictum.adapters.fastmcp import FastMCPAdapter as FastMCPAdapter
    from edictum.adapters.google_adk import GoogleADKAdapter as GoogleADKAdapter
    from edictum.adapters.langchain import LangChainAdapter as LangChainAdapter
    from edictum.adapters.nanobot import NanobotAdapter as NanobotAdapter
    from edictum.adapters.openai_agents import OpenAIAgentsAdapter as OpenAIAgentsAdapter
    from edictum.adapters.pydantic_ai import PydanticAIAdapter as PydanticAIAdapter
    from edictum.adapters.semantic_kernel import SemanticKernelAdapter as SemanticKernelAdapter

ADAPTERS = {
    "AgnoAdapter": "agno",
    "ClaudeAgentSDKAdapter": "claude_agent_sdk",
    "CrewAIAdapter": "crewai",
    "FastMCPAdapter": "fastmcp",
    "GoogleADKAdapter": "google_adk",
    "LangChainAdapter": "langchain",
    "NanobotAdapter": "nanobot",
    "OpenAIAgentsAdapter": "openai_agents",
    "PydanticAIAdapter": "pydantic_ai",
    "SemanticKernelAdapter": "semantic_kernel",
}

__all__ = list(ADAPTERS)


if not TYPE_CHECKING:  # with it, type checkers would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name not in ADAPTERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{ADAPTERS[name]}"), name)
