"""Compose layers of bundles, from left to right, into one.

A contract with an id that an earlier layer has replaces it in place; others are appended. A layer
with ``observe_alongside: true`` changes nothing that is enforced: its contracts are added as
candidates that only observe. The first layer has no other to observe alongside, so it is always
enforced, with a warning if it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from edictum.contracts._bundle import Bundle, ContractSpec, SuccessSpec
from edictum.contracts._report import CompositionOverride, CompositionReport, ShadowContract
from edictum.core._records import replace
from edictum.core.policy import join_versions
from edictum.core.tool_entry import AMOUNT_KEYS, inherit_settings

_Tools: TypeAlias = Mapping[str, Mapping[str, Any]]


def compose(bundles: Sequence[Bundle]) -> tuple[Bundle, CompositionReport]:
    """Return one bundle, and a report of what was replaced and what only observes."""
    report = CompositionReport(
        warnings=[str(warning) for bundle in bundles for warning in bundle.warnings]
    )
    merged = bundles[0]
    if merged.observe_alongside:
        report.warnings.append(
            f"{merged.source}: the bundle is enforced: 'observe_alongside: true' has no effect in"
            " the first layer. Remove it, or put the bundle that it stands beside first."
        )
    for layer in bundles[1:]:
        add = _add_candidates if layer.observe_alongside else _add_layer
        merged = add(merged, layer, report)
    return replace(merged, version=join_versions([it.version for it in bundles])), report


def _add_layer(below: Bundle, above: Bundle, report: CompositionReport) -> Bundle:
    contracts = {contract.id: contract for contract in below.contracts}
    for contract in above.contracts:
        if contract.id in contracts:
            replaced = contracts[contract.id].source
            report.overridden_contracts.append(
                CompositionOverride(contract.id, contract.source, replaced)
            )
        contracts[contract.id] = contract
    return replace(
        below,
        mode=above.mode or below.mode,
        unlisted_tools=above.unlisted_tools or below.unlisted_tools,
        missing_args=above.missing_args or below.missing_args,
        contracts=tuple(contracts.values()),
        success=_merge_success(below, above),
        tools=_merge_tools(below.tools, above.tools),
        secrets=(*below.secrets, *above.secrets),
        session={**below.session, **above.session},
        approvals=above.approvals or below.approvals,
        observability=above.observability or below.observability,
    )


def _merge_tools(below: _Tools, above: _Tools) -> _Tools:
    """Return the entries of both layers; one of ``above`` inherits from the entry of the same name
    in ``below``.
    """
    both = below.keys() & above.keys()
    inherited = {
        name: {**above[name], **inherit_settings(above[name], below[name])} for name in both
    }
    return {**below, **above, **inherited}


def _merge_success(below: Bundle, above: Bundle) -> tuple[SuccessSpec, ...]:
    """Return the rules of both layers: a named one replaces that of the same name, unnamed ones are
    all kept.
    """
    rules: dict[str, SuccessSpec] = {}
    for layer in (below, above):
        for rule in layer.success:
            is_unnamed = rule.id.startswith("success[")
            rules[f"{layer.source}:{rule.id}" if is_unnamed else rule.id] = rule
    return tuple(rules.values())


def _add_candidates(below: Bundle, layer: Bundle, report: CompositionReport) -> Bundle:
    enforced = {contract.id: contract.source for contract in below.contracts}
    candidates: list[ContractSpec] = []
    for contract in layer.contracts:
        report.shadow_contracts.append(
            ShadowContract(contract.id, enforced.get(contract.id, ""), layer.source)
        )
        candidates.append(
            replace(contract, id=f"{contract.id}:candidate", mode="observe", shadow=True)
        )
    # What a candidate's tools state would be counted by limits that are enforced.
    tools = {
        name: {key: value for key, value in entry.items() if key not in AMOUNT_KEYS}
        for name, entry in layer.tools.items()
    }
    if tools != layer.tools:
        reason = "its limits see the amounts that the layers it is tried beside state"
        report.warnings.append(f"{layer.source}: amounts of a candidate are not counted: {reason}.")
    return replace(
        below,
        contracts=(*below.contracts, *candidates),
        tools={**tools, **below.tools},
        secrets=(*below.secrets, *layer.secrets),
    )
