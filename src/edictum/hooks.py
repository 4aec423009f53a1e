"""Import path of the older library for HookDecision, HookRegistration and HookResult."""

from edictum.core.hooks import HookDecision, HookRegistration, HookResult

__all__ = ["HookDecision", "HookRegistration", "HookResult"]
