"""Adapters: one per framework. Each only translates; every rule, event and counter is the guard's.

A framework is imported when its adapter is wired, not before; ``from edictum.adapters import LangChainAdapter`` needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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


def __getattr__(name: str) -> Any:
    if name not in ADAPTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{ADAPTERS[name]}"), name)
