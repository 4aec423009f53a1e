"""Compose layers of bundles, from left to right, into one.

A contract with an id that an earlier layer has replaces it in place; others are appended. A layer
with ``observe_alongside: true`` changes nothing that is enforced, wherever it stands: its contracts
are added as candidates that only observe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from edictum.contracts._bundle import Bundle, ContractSpec, SuccessSpec
from edictum.contracts._report import CompositionOverride, CompositionReport, ShadowContract
from edictum.core._records import replace


def compose(bundles: Sequence[Bundle]) -> tuple[Bundle, CompositionReport]:
    """Return one bundle, and a report of what was replaced and what only observes."""
    report = CompositionReport(
        warnings=[str(warning) for bundle in bundles for warning in bundle.warnings]
    )
    first = bundles[0]
    merged = first
    if first.observe_alongside:
        merged = _add_candidates(_empty_base(first), first, report)
    for layer in bundles[1:]:
        add = _add_candidates if layer.observe_alongside else _add_layer
        merged = add(merged, layer, report)
    if all(bundle.observe_alongside for bundle in bundles):
        reason = "'observe_alongside: true' makes the bundle a candidate"
        report.warnings.append(f"{first.source}: nothing is enforced: {reason}.")
    return replace(merged, version=_version(bundles)), report


def _empty_base(bundle: Bundle) -> Bundle:
    """Return what lies under a candidate that comes first: its stores, and nothing enforced."""
    return Bundle(
        name=bundle.name,
        source=bundle.source,
        session=bundle.session,
        observability=bundle.observability,
    )


def _version(bundles: Sequence[Bundle]) -> str:
    if len(bundles) == 1:
        return bundles[0].version
    return hashlib.sha256(":".join(bundle.version for bundle in bundles).encode()).hexdigest()


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
        contracts=tuple(contracts.values()),
        success=_merge_success(below, above),
        tools={**below.tools, **above.tools},
        secrets=(*below.secrets, *above.secrets),
        session={**below.session, **above.session},
        observability=above.observability or below.observability,
    )


def _merge_success(below: Bundle, above: Bundle) -> tuple[SuccessSpec, ...]:
    """Return the rules of both: a named one replaces its namesake, unnamed ones are all kept."""
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
    return replace(
        below,
        contracts=(*below.contracts, *candidates),
        tools={**layer.tools, **below.tools},
        secrets=(*below.secrets, *layer.secrets),
    )
