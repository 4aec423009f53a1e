"""Make the policy of a guard from bundles: read files, compose, compile, and add what was given in
Python.

The YAML parts are imported when a bundle is loaded: a guard without one needs no extra packages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from edictum._logs import POLICY_DEFAULT, POLICY_WARNING, log
from edictum.approval._urls import open_approvals
from edictum.approval.links import LINK_VALID_S, ApprovalLinks
from edictum.approval.port import find_approver_problem
from edictum.approval.queue import ApprovalQueue
from edictum.approval.webhook import Webhook
from edictum.contracts._language import MAX_BUNDLE_BYTES, Language
from edictum.contracts._report import CompositionReport, TemplateInfo
from edictum.core.call import Principal
from edictum.core.contract import Contract, Mode, check_mode
from edictum.core.hooks import HookRegistration
from edictum.core.limits import Limit, OperationLimits, tighten_by_bundle
from edictum.core.policy import Policy
from edictum.core.redaction import RedactionPolicy
from edictum.core.tool_entry import ToolEntry, inherit_entry
from edictum.errors import EdictumConfigError
from edictum.sessions._urls import open as open_ledger
from edictum.sessions.ledger import Ledger

if TYPE_CHECKING:
    from edictum.contracts._bundle import Bundle

BUILTIN_TEMPLATES = Path(__file__).parent / "contracts" / "templates"
MAX_LOGGED = 100  # warnings about one load; the report has all of them


class GuardOptions(TypedDict, total=False):
    """Keywords of a guard that a factory passes on."""

    contracts: Any
    hooks: Any
    limits: OperationLimits | Sequence[OperationLimits] | None
    tools: Mapping[str, Any] | None
    success_check: Any
    on_deny: Any
    on_allow: Any
    principal: Any
    principal_resolver: Any
    approval_backend: Any
    audit_sink: Any
    redaction: RedactionPolicy | None
    environment: str
    backend: Any
    clock: Any
    execution: Any
    local_events: int
    max_hung_threads: int
    require_store: bool


class BundleOptions(GuardOptions, total=False):
    """Keywords of a factory: those of a guard, and how the bundle is read."""

    mode: Mode | None
    custom_operators: Mapping[str, Callable[[Any, Any], Any]] | None
    custom_selectors: Mapping[str, Callable[[Any], Any]] | None
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Base:
    """What a guard was given in Python; it stays when a bundle is loaded or reloaded."""

    contracts: tuple[Contract, ...] = ()
    hooks: tuple[HookRegistration, ...] = ()
    limits: OperationLimits | None = None
    scoped_limits: tuple[Limit, ...] = ()
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)
    merged_bundles: bool = False  # merged from a guard whose bundle no reload could replace

    def policy(self, version: str | None) -> Policy:
        return Policy(
            contracts=self.contracts,
            hooks=self.hooks,
            limits=self.limits,
            session_limits=self.scoped_limits,
            tools=self.tools,
            version=version,
        )


def take_language(options: BundleOptions) -> tuple[Language, GuardOptions]:
    """Split the options of a factory into those for reading the bundle and those for the guard."""
    rest: dict[str, Any] = dict(options)
    mode = rest.pop("mode", None)
    check_mode(mode, "Edictum", optional=True)
    operators, selectors = rest.pop("custom_operators", None), rest.pop("custom_selectors", None)
    if operators or selectors:
        from edictum.contracts._operators import check_custom_operators
        from edictum.contracts._selectors import check_custom_selectors

        operators = check_custom_operators(operators)
        selectors = check_custom_selectors(selectors)
    max_bytes = rest.pop("max_bytes", MAX_BUNDLE_BYTES)
    return Language(operators or {}, selectors or {}, mode, max_bytes), cast("GuardOptions", rest)


@dataclass(frozen=True, slots=True)
class Layer:
    """The text of one bundle, and the name that errors give it."""

    name: str
    content: bytes | str


def read_files(paths: Sequence[str | os.PathLike[str]], max_bytes: int) -> list[Layer]:
    """Read files. Of one that is too large, read only as much as shows that it is."""
    if not paths:
        message = "from_yaml() requires at least one path."
        raise EdictumConfigError(message, hint="Pass the path of a YAML file.")
    return [Layer(str(path), _read(Path(path), max_bytes)) for path in paths]


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as exc:
        message = f"{path} cannot be read: {exc.strerror or exc}."
        raise EdictumConfigError(message, hint="Pass the path of a readable file.") from exc


def to_layers(given: Sequence[str | bytes | os.PathLike[str]], max_bytes: int) -> list[Layer]:
    """Return the layers given as YAML text, or read from Path objects."""
    layers = []
    hint = "Pass YAML as text or bytes, or a Path."
    for number, layer in enumerate(given):
        name = "<string>" if len(given) == 1 else f"<string {number + 1}>"
        if isinstance(layer, (str, bytes)):
            layers.append(Layer(name, layer))
        elif isinstance(layer, os.PathLike):
            layers += read_files([layer], max_bytes)
        else:
            raise EdictumConfigError(f"A bundle is {type(layer).__name__}.", hint=hint)
    if not layers:
        raise EdictumConfigError("No bundle was given.", hint=hint)
    return layers


def parse_layers(layers: Sequence[Layer], language: Language) -> tuple[Bundle, CompositionReport]:
    """Return the composed bundle; raise the errors of all layers together, log the warnings."""
    from edictum.contracts._compose import compose
    from edictum.contracts._parse import parse
    from edictum.contracts._problems import BundleError, BundleProblem

    bundles: list[Bundle] = []
    problems: list[BundleProblem] = []
    for layer in layers:
        try:
            bundles.append(parse(layer.content, layer.name, language))
        except BundleError as exc:
            problems += exc.problems
    if problems:
        raise BundleError(problems)
    bundle, report = compose(bundles)
    if bundle.mode is None and language.mode is None:
        message = "%s: 'defaults.mode' is missing, enforce is assumed."
        log(POLICY_DEFAULT, message, bundle.source, bundle=bundle.source)
    _log_warnings(report.warnings)
    return bundle, report


def _log_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings[:MAX_LOGGED]:
        log(POLICY_WARNING, "%s", warning)
    if len(warnings) > MAX_LOGGED:
        log(POLICY_WARNING, "... and %d more warnings", len(warnings) - MAX_LOGGED)


def build_policy(
    base: Base, bundle: Bundle, language: Language, redaction: RedactionPolicy
) -> Policy:
    """Return the bundle's policy beside what was given in Python, whose tool entries win."""
    from edictum.contracts._compile import compile_bundle
    from edictum.contracts._digest import digest_bundle

    compiled = compile_bundle(bundle, language, redaction)
    return Policy(
        contracts=(*base.contracts, *compiled.contracts),
        hooks=base.hooks,
        limits=tighten_by_bundle(base.limits, compiled.session_limits),
        session_limits=(*base.scoped_limits, *compiled.session_limits),
        tools=_merge_tools(compiled.tools, base.tools),
        success_rules=compiled.success_rules,
        version=bundle.version,
        unlisted=compiled.unlisted,
        mode=compiled.mode,
        # With a bundle that observes, default limits observe; limits given in Python enforce.
        enforce_limits=compiled.mode == "enforce" or base.limits is not None,
        bundle_digest=partial(digest_bundle, bundle),
    )


def _merge_tools(
    bundle: Mapping[str, ToolEntry], python: Mapping[str, ToolEntry]
) -> dict[str, ToolEntry]:
    """Return all entries. Python's take precedence, and keep amounts and a pin that only the bundle
    states.
    """
    kept = {name: inherit_entry(python[name], bundle[name]) for name in python if name in bundle}
    return {**bundle, **python, **kept}


def warn_about_amounts(base: Base, bundle: Bundle, report: CompositionReport) -> None:
    """Report and log limits on amounts that no tool states, and amounts that no limit reads."""
    from edictum.contracts._amounts import find_unmatched_amounts

    stated = [name for it in base.tools.values() for name in (*it.amounts, *it.actual)]
    read = base.limits.budgets() if base.limits is not None else ()
    found = find_unmatched_amounts(bundle, stated, read)
    warnings = [str(problem) for problem in found]
    _log_warnings(warnings)
    report.warnings.extend(warnings)


def warn_about_approvers(backend: Any, policy: Policy, report: CompositionReport | None) -> None:
    """Report and log a backend that does not verify approvers under a policy that restricts
    them.
    """
    if (problem := find_approver_problem(backend, policy)) is not None:
        _log_warnings([str(problem)])
        if report is not None:
            report.warnings.append(str(problem))


def open_sinks(bundle: Bundle) -> list[Any] | None:
    """Return the audit sinks that a bundle names; None when it names none."""
    from edictum.audit import Chain, FileAuditSink, StdoutAuditSink, open_audit

    wanted = bundle.observability
    sinks: list[Any] = [StdoutAuditSink()] if wanted.get("stdout") else []
    if file := wanted.get("file"):
        options = {"path": file} if isinstance(file, str) else dict(file)
        if key := options.pop("key", None):
            options["chain"] = Chain(key=key)
        sinks.append(FileAuditSink(**options))
    if store := wanted.get("store"):
        options = {"url": store} if isinstance(store, str) else dict(store)
        if key := options.pop("key", None):
            options["chain"] = Chain(key=key)
        sinks.append(open_audit(**options))
    return sinks or None


def start_telemetry(bundle: Bundle) -> None:
    """Turn OpenTelemetry on for the process, if a bundle asks for it."""
    settings = dict(bundle.observability.get("otel", {}))
    if settings.pop("enabled", False):
        from edictum.otel import configure_otel

        configure_otel(**settings)


def open_approval_store(bundle: Bundle) -> ApprovalQueue | None:
    """Return the approval queue that a bundle names, with its webhooks."""
    settings = bundle.approvals
    if not settings:
        return None
    webhooks = [_make_webhook(each) for each in settings.get("notify", ())]
    return open_approvals(settings["store"], notify=webhooks)


def _make_webhook(settings: Mapping[str, Any]) -> Webhook:
    options = dict(settings)
    link, timeout_s = options.pop("link", None), options.pop("timeout", None)
    if timeout_s is not None:
        options["timeout_s"] = timeout_s
    if link is not None:
        options["links"] = ApprovalLinks(
            link["url"],
            key=link.get("key"),
            key_file=link.get("key_file"),
            valid_s=link.get("valid", LINK_VALID_S),
        )
        options["approver"] = Principal(**link["approver"])
    return Webhook(**options)


def open_session_store(bundle: Bundle) -> Ledger | None:
    """Return the ledger that a bundle's ``session:`` section names; None when it names none."""
    wanted = bundle.session
    if not {"store", "lease", "ttl"} & wanted.keys():
        return None
    ttl_s = wanted.get("ttl", ...)
    return open_ledger(wanted.get("store", "memory:"), lease_s=wanted.get("lease"), ttl_s=ttl_s)


# --- Templates ------------------------------------------------------------------------------------


def list_templates(
    template_dirs: Sequence[str | os.PathLike[str]] | None = None,
) -> list[TemplateInfo]:
    """Return the templates in the given directories, then the built-in ones with other names."""
    found: dict[str, TemplateInfo] = {}
    own = [(Path(directory), False) for directory in template_dirs or ()]
    for directory, builtin in [*own, (BUILTIN_TEMPLATES, True)]:
        for path in sorted(directory.glob("*.yaml")) if directory.is_dir() else ():
            found.setdefault(path.stem, TemplateInfo(path.stem, path, builtin))
    return list(found.values())


def find_template(name: str, template_dirs: Sequence[str | os.PathLike[str]] | None) -> Path:
    """Return the file of a listed template; no name leads to any other file."""
    templates = {info.name: info.path for info in list_templates(template_dirs)}
    if name not in templates:
        known = ", ".join(sorted(templates)) or "none"
        message = f"Template '{name}' not found. Available: {known}."
        raise EdictumConfigError(message, hint="Use one of them, or pass template_dirs.")
    return templates[name]
