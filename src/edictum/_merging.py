"""Merging the policies of several guards into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edictum._logs import POLICY_WARNING, log
from edictum.core.contract import Contract
from edictum.core.limits import tightest
from edictum.core.policy import Policy
from edictum.core.tool_entry import ToolEntry, merge_entries
from edictum.core.values import digest


def merge_policies(policies: Sequence[Policy]) -> Policy:
    """Return one policy with what all of these have; version and mode are the first's."""
    return Policy(
        contracts=_merge_contracts(policies),
        hooks=_merge_lists(policies, "hooks"),
        limits=tightest(policy.limits for policy in policies),
        session_limits=_merge_lists(policies, "session_limits"),
        tools=_merge_tools(policies),
        success_rules=_merge_lists(policies, "success_rules"),
        version=policies[0].version,
        unlisted=_strictest(policy.unlisted for policy in policies),
        enforce_limits=any(policy.enforce_limits for policy in policies),
        mode=policies[0].mode,
        bundle_digest=lambda: digest(*(policy.digest() for policy in policies)),
    )


def _merge_tools(policies: Sequence[Policy]) -> dict[str, ToolEntry]:
    tools: dict[str, ToolEntry] = {}
    for policy in policies:
        for name, entry in policy.tools.items():
            tools[name] = merge_entries(tools[name], entry) if name in tools else entry
    return tools


def _strictest(unlisted: Iterable[Contract | None]) -> Contract | None:
    """Return the strictest contract about unlisted tools: one that denies before one that asks."""
    given = [contract for contract in unlisted if contract is not None]
    return min(given, key=lambda contract: contract.effect != "deny", default=None)


def _merge_lists(policies: Sequence[Policy], name: str) -> list[Any]:
    """Return the items that the policies have under a name, without repetitions."""
    kept: list[Any] = []
    for policy in policies:
        kept += [item for item in getattr(policy, name) if item not in kept]
    return kept


def _merge_contracts(policies: Sequence[Policy]) -> list[Contract]:
    kept: dict[int, Contract] = {}
    ids: set[str] = set()
    for contract in (contract for policy in policies for contract in policy.contracts):
        if id(contract) in kept:
            log(
                POLICY_WARNING,
                "from_multiple: contract %r is in several guards; it is asked once",
                contract.id,
            )
            continue
        if contract.id in ids:
            log(
                POLICY_WARNING,
                "from_multiple: several contracts are called %r; all of them are kept",
                contract.id,
            )
        kept[id(contract)] = contract
        ids.add(contract.id)
    return list(kept.values())
