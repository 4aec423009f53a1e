"""Load, compose and compile bundles as plain data, as ``edictum.yaml_engine`` did.

New code uses ``Edictum.from_yaml``, which takes several layers. These functions only translate: the
loader, the composition and the compiler are the same.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edictum._factories import Layer, parse_layers, read_files, take_language
from edictum.contracts._report import CompositionOverride, CompositionReport, ShadowContract
from edictum.core._records import replace
from edictum.core.contract import Contract, Kind, Mode
from edictum.core.limits import Limit, Metric, OperationLimits, tighten_by_bundle
from edictum.core.redaction import RedactionPolicy
from edictum.errors import EdictumConfigError

Data = dict[str, Any]
CANDIDATE = ":candidate"
MERGED = ("defaults", "tools", "metadata")  # by key; other sections are replaced as a whole
REPLACED = ("limits", "observability", "session", "success")


@dataclass(frozen=True, slots=True)
class BundleHash:
    """The SHA-256 of a bundle's bytes."""

    hex: str

    def __str__(self) -> str:
        return self.hex


@dataclass(frozen=True, slots=True)
class ComposedBundle:
    """Several bundles as one, and a report of how they were combined."""

    bundle: Data
    report: CompositionReport


@dataclass(frozen=True, slots=True)
class CompiledBundle:
    """What ``Edictum(contracts=..., limits=..., tools=...)`` takes of a bundle."""

    preconditions: list[Contract] = field(default_factory=list)
    postconditions: list[Contract] = field(default_factory=list)
    session_contracts: list[Contract] = field(default_factory=list)
    sandbox_contracts: list[Contract] = field(default_factory=list)
    limits: OperationLimits = field(default_factory=OperationLimits)
    default_mode: Mode = "enforce"
    tools: Data = field(default_factory=dict)


def read_bundle(path: str | os.PathLike[str], **language: Any) -> tuple[Data, BundleHash]:
    """Return a file as checked, plain data, and its hash.

    ``custom_operators`` and ``custom_selectors`` are those of ``Edictum.from_yaml``.
    """
    known, _ = take_language(language)  # type: ignore[arg-type]  # checked there
    (layer,) = read_files([path], known.max_bytes)
    return _load(layer, language)


def read_bundle_string(content: str | bytes, **language: Any) -> tuple[Data, BundleHash]:
    """Return text as ``read_bundle`` returns a file."""
    return _load(Layer("<string>", content), language)


def _load(layer: Layer, language: Data) -> tuple[Data, BundleHash]:
    from edictum.contracts._load import load_yaml  # needs the YAML library, as parse_layers does
    from edictum.contracts._tree import to_plain

    known, _ = take_language(language)  # type: ignore[arg-type]  # checked there
    parsed, _ = parse_layers([layer], known)
    tree, _ = load_yaml(layer.content, layer.name, max_bytes=known.max_bytes)
    return to_plain(tree), BundleHash(parsed.version)


# --- Composing ------------------------------------------------------------------------------------


def compose_bundles(*layers: tuple[Mapping[str, Any], str]) -> ComposedBundle:
    """Return layers, each plain data with its name, as one, from left to right.

    A contract replaces the one of its id in place. Those of a later layer with
    ``observe_alongside`` are added as candidates.
    """
    if not layers:
        raise ValueError("compose_bundles() needs at least one bundle")
    report = CompositionReport()
    first, name = layers[0]
    merged: Data = copy.deepcopy(dict(first))
    merged.pop("observe_alongside", None)  # the first layer has no contracts to observe alongside
    sources = {contract["id"]: name for contract in merged.get(_list_key(merged), [])}
    for data, label in layers[1:]:
        layer: Data = copy.deepcopy(dict(data))
        add = _add_candidates if layer.pop("observe_alongside", False) else _add_layer
        add(merged, layer, label, sources, report)
    return ComposedBundle(merged, report)


def _list_key(bundle: Mapping[str, Any]) -> str:
    return "rules" if "rules" in bundle else "contracts"


def _add_layer(
    merged: Data, layer: Data, name: str, sources: dict[str, str], report: CompositionReport
) -> None:
    for key in MERGED:
        if key in layer:
            merged[key] = {**merged.get(key, {}), **layer[key]}
    merged.update({key: layer[key] for key in REPLACED if key in layer})
    contracts = merged.setdefault(_list_key(merged), [])
    positions = {contract["id"]: at for at, contract in enumerate(contracts)}
    for contract in layer.get(_list_key(layer), []):
        found = contract["id"]
        if found in positions:
            report.overridden_contracts.append(CompositionOverride(found, name, sources[found]))
            contracts[positions[found]] = contract
        else:
            contracts.append(contract)
        sources[found] = name


def _add_candidates(
    merged: Data, layer: Data, name: str, sources: dict[str, str], report: CompositionReport
) -> None:
    for key in ("tools", "metadata"):
        if key in layer:
            merged[key] = {**merged.get(key, {}), **layer[key]}
    contracts = merged.setdefault(_list_key(merged), [])
    for contract in layer.get(_list_key(layer), []):
        found = contract["id"]
        report.shadow_contracts.append(ShadowContract(found, sources.get(found, ""), name))
        observed = {"id": f"{found}{CANDIDATE}", "mode": "observe", "_shadow": True}
        contracts.append({**contract, **observed})


# --- Compiling ------------------------------------------------------------------------------------


def compile_contracts(
    bundle: Mapping[str, Any],
    *,
    custom_operators: Mapping[str, Any] | None = None,
    custom_selectors: Mapping[str, Any] | None = None,
) -> CompiledBundle:
    """Return the parts of a bundle as arguments of a guard.

    Raises EdictumConfigError for a part that no argument can express: nothing is dropped.
    """
    from edictum.contracts._compile import compile_bundle

    language, _ = take_language(
        {"custom_operators": custom_operators, "custom_selectors": custom_selectors}
    )
    layers = [Layer("<bundle>", _write_yaml(data)) for data in _split_candidates(bundle)]
    parsed, _ = parse_layers(layers, language)
    compiled = compile_bundle(parsed, language, RedactionPolicy())
    if compiled.success_rules or compiled.unlisted is not None:
        _refuse("'success' or 'defaults.unlisted_tools'")
    by_kind: dict[Kind, list[Contract]] = {
        kind: [contract for contract in compiled.contracts if contract.kind is kind]
        for kind in Kind
    }
    return CompiledBundle(
        preconditions=by_kind[Kind.PRE],
        postconditions=by_kind[Kind.POST],
        session_contracts=by_kind[Kind.SESSION],
        sandbox_contracts=by_kind[Kind.SANDBOX],
        limits=_merge_limits(compiled.session_limits),
        default_mode=compiled.mode,
        tools=copy.deepcopy(dict(bundle.get("tools") or {})),
    )


def _merge_limits(limits: tuple[Limit, ...]) -> OperationLimits:
    """Return the lowest of each bound; messages and modes of session contracts are lost."""
    enforced = [
        replace(limit, enforce=True)
        for limit in limits
        if not (limit.contract_id or "").endswith(CANDIDATE)
    ]
    if any(not it.is_replaceable or it.metric is Metric.AMOUNT for it in enforced):
        _refuse("a limit with a scope, a window, a condition or an amount")
    return tighten_by_bundle(None, enforced)


def _refuse(what: str) -> None:
    raise EdictumConfigError(
        f"compile_contracts(): the bundle has {what}, which CompiledBundle cannot carry.",
        hint="Make the guard with Edictum.from_yaml(path, contracts=[...], hooks=[...]).",
    )


def _split_candidates(bundle: Mapping[str, Any]) -> list[Data]:
    """Return the bundle, and if it has candidates the layer that they come from."""
    key = _list_key(bundle)
    contracts = list(bundle.get(key) or ())
    candidates = [
        {name: value for name, value in it.items() if name != "_shadow"}
        | {"id": it["id"].removesuffix(CANDIDATE)}
        for it in contracts
        if it.get("_shadow")
    ]
    base = {name: it for name, it in bundle.items() if name != "observe_alongside"}
    if not candidates:
        return [base]
    head = {name: bundle[name] for name in ("apiVersion", "kind", "metadata") if name in bundle}
    enforced = {key: [it for it in contracts if not it.get("_shadow")]}
    return [base | enforced, head | {key: candidates, "observe_alongside": True}]


def _write_yaml(data: Data) -> str:
    """Return plain data as YAML: JSON, with the escapes that both have."""
    text = json.dumps(data, ensure_ascii=False, indent=1)
    return "".join(it if it == "\n" or " " <= it <= "~" else f"\\U{ord(it):08x}" for it in text)
