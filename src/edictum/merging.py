"""Merging the policies of several guards into one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from edictum.core.contract import Contract
from edictum.core.limits import OperationLimits
from edictum.core.policy import Policy, ToolEntry, merge_entries

logger = logging.getLogger("edictum")


def merged(policies: Sequence[Policy]) -> Policy:
    tools: dict[str, ToolEntry] = {}
    for policy in policies:
        for name, entry in policy.tools.items():
            tools[name] = merge_entries(tools[name], entry) if name in tools else entry
    return Policy(
        contracts=_merged_contracts(policies),
        hooks=_distinct(hook for policy in policies for hook in policy.hooks),
        limits=tightest(policy.limits for policy in policies),
        session_limits=_distinct(limit for policy in policies for limit in policy.session_limits),
        tools=tools,
        success_rules=_distinct(rule for policy in policies for rule in policy.success_rules),
        version=policies[0].version,
        unlisted=_strictest(policy.unlisted for policy in policies),
        enforce_limits=any(policy.enforce_limits for policy in policies),
        mode=policies[0].mode,
    )


def tightest(limits: Iterable[OperationLimits | None]) -> OperationLimits | None:
    """What all of these allow; None when none of them says anything."""
    given = [each for each in limits if each is not None]
    return reduce(OperationLimits.tighter, given) if given else None


def _strictest(unlisted: Iterable[Contract | None]) -> Contract | None:
    """Of what several guards say about unlisted tools, a denial before a question, a question
    before nothing.
    """
    given = [contract for contract in unlisted if contract is not None]
    return min(given, key=lambda contract: contract.effect != "deny", default=None)


def _distinct(items: Any) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept


def _merged_contracts(policies: Sequence[Policy]) -> list[Contract]:
    kept: dict[int, Contract] = {}
    ids: set[str] = set()
    for contract in (contract for policy in policies for contract in policy.contracts):
        if id(contract) in kept:
            logger.warning(
                "from_multiple: contract %r is in several guards; it is asked once", contract.id
            )
            continue
        if contract.id in ids:
            logger.warning(
                "from_multiple: several contracts are called %r; all of them are kept", contract.id
            )
        kept[id(contract)] = contract
        ids.add(contract.id)
    return list(kept.values())
