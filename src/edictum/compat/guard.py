"""The methods of a guard that programs written for the older library call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edictum.compat.calls import ToolCatalog
from edictum.core.call import SideEffect, ToolCall
from edictum.core.contract import Contract, Kind
from edictum.core.hooks import HookRegistration
from edictum.core.policy import Policy
from edictum.core.tool_entry import ToolEntry


class OlderGuard:
    """The contracts and hooks that apply to a call, and the table of tools as a registry.

    New code reads ``guard.policy`` and describes tools with ``tools=``.
    """

    @property
    def policy(self) -> Policy:
        raise AssertionError("a subclass answers this")

    def _describe_tool(self, name: str, entry: ToolEntry) -> None:
        raise AssertionError("a subclass answers this")

    @property
    def tool_registry(self) -> ToolCatalog:
        """The guard's table of tools; a tool registered there counts from then on."""
        return GuardTools(self)

    def get_preconditions(self, envelope: ToolCall) -> list[Contract]:
        return self._list_contracts(Kind.PRE, envelope)

    def get_sandbox_contracts(self, envelope: ToolCall) -> list[Contract]:
        return self._list_contracts(Kind.SANDBOX, envelope)

    def get_postconditions(self, envelope: ToolCall) -> list[Contract]:
        return self._list_contracts(Kind.POST, envelope)

    def get_session_contracts(self) -> list[Contract]:
        return self._list_session_contracts()

    def get_shadow_preconditions(self, envelope: ToolCall) -> list[Contract]:
        return self._list_contracts(Kind.PRE, envelope, shadow=True)

    def get_shadow_sandbox_contracts(self, envelope: ToolCall) -> list[Contract]:
        return self._list_contracts(Kind.SANDBOX, envelope, shadow=True)

    def get_shadow_postconditions(self, envelope: ToolCall) -> list[Contract]:
        return self._list_contracts(Kind.POST, envelope, shadow=True)

    def get_shadow_session_contracts(self) -> list[Contract]:
        return self._list_session_contracts(shadow=True)

    def get_hooks(self, phase: str, envelope: ToolCall) -> list[HookRegistration]:
        plan = self.policy.plan(envelope.tool_name)
        hooks = plan.hooks_before if phase == "before" else plan.hooks_after
        return [hook for hook in hooks if hook.when is None or hook.when(envelope)]

    def _list_contracts(
        self, kind: Kind, call: ToolCall, *, shadow: bool = False
    ) -> list[Contract]:
        plan = self.policy.plan(call.tool_name)
        return [
            contract
            for contract in (*plan.before, *plan.after)
            if contract.kind is kind
            and contract.shadow is shadow
            and (contract.when is None or contract.when(call))
        ]

    def _list_session_contracts(self, *, shadow: bool = False) -> list[Contract]:
        every = self.policy.contracts
        return [it for it in every if it.kind is Kind.SESSION and it.shadow is shadow]


class GuardTools(ToolCatalog):
    """The table of tools of one guard."""

    def __init__(self, guard: OlderGuard) -> None:
        self._guard = guard

    def register(
        self, name: str, side_effect: SideEffect | str = SideEffect.WRITE, idempotent: bool = False
    ) -> None:
        """Describe one tool to the guard; a second description replaces the first."""
        entry = ToolEntry(side_effect=SideEffect(side_effect), idempotent=idempotent)
        self._guard._describe_tool(name, entry)

    def classify(
        self, tool_name: str, args: Mapping[str, Any] | None = None
    ) -> tuple[SideEffect, bool]:
        """Return the tool's side effect, and whether it is idempotent."""
        entry = self._guard.policy.entry(tool_name)
        return entry.side_effect, entry.idempotent
