"""Hooks: functions that watch a call, and may refuse it before it runs."""

from edictum.core.hooks import HookDecision, HookRegistration, HookResult

__all__ = ["HookDecision", "HookRegistration", "HookResult"]
