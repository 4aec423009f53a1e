"""Adapters: one per framework. Each only translates; every rule, event and counter is the guard's.

A framework is imported when its adapter is wired, not before; ``from edictum.adapters import
LangChainAdapter`` needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edictum.adapters.agno import AgnoAdapter
    from edictum.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
    from edictum.adapters.crewai import CrewAIAdapter
    from edictum.adapters.fastmcp import FastMCPAdapter
    from edictum.adapters.google_adk import GoogleADKAdapter
    from edictum.adapters.langchain import LangChainAdapter
    from edictum.adapters.nanobot import NanobotAdapter
    from edictum.adapters.openai_agents import OpenAIAgentsAdapter
    from edictum.adapters.pydantic_ai import PydanticAIAdapter
    from edictum.adapters.semantic_kernel import SemanticKernelAdapter

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

__all__ = [
    "AgnoAdapter",
    "ClaudeAgentSDKAdapter",
    "CrewAIAdapter",
    "FastMCPAdapter",
    "GoogleADKAdapter",
    "LangChainAdapter",
    "NanobotAdapter",
    "OpenAIAgentsAdapter",
    "PydanticAIAdapter",
    "SemanticKernelAdapter",
]


if not TYPE_CHECKING:  # with it, type checkers would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name not in ADAPTERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{ADAPTERS[name]}"), name)
