"""Guards from bundles: reading files, composing, compiling, and putting the result beside what was
given in Python.

The YAML parts are imported when a bundle is loaded, so a guard without one needs no extra packages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from edictum.contracts.report import CompositionReport, TemplateInfo
from edictum.core.contract import Contract, Mode, check_mode
from edictum.core.hooks import HookRegistration
from edictum.core.limits import OperationLimits
from edictum.core.policy import Policy, ToolEntry
from edictum.core.redaction import RedactionPolicy
from edictum.errors import EdictumConfigError
from edictum.sessions._urls import open as open_ledger
from edictum.sessions.ledger import Ledger

if TYPE_CHECKING:
    from edictum.contracts.bundle import Bundle

logger = logging.getLogger("edictum")

BUILTIN_TEMPLATES = Path(__file__).parent / "contracts" / "templates"
DEFAULT_MAX_BYTES = 1_048_576
MAX_LOGGED = 100  # warnings about one load; the report has all of them


class GuardOptions(TypedDict, total=False):
    """The keywords of a guard that a factory passes on."""

    contracts: Any
    hooks: Any
    limits: OperationLimits | None
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


class BundleOptions(GuardOptions, total=False):
    """The keywords of a factory: those of a guard, and how the bundle is read."""

    mode: Mode | None
    custom_operators: Mapping[str, Callable[[Any, Any], Any]] | None
    custom_selectors: Mapping[str, Callable[[Any], Any]] | None
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Base:
    """What a guard was given in Python. It stays when a bundle is loaded or reloaded."""

    contracts: tuple[Contract, ...] = ()
    hooks: tuple[HookRegistration, ...] = ()
    limits: OperationLimits | None = None
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)
    # a guard that this one was merged from had a bundle, which no reload of this one could replace
    merged_bundles: bool = False

    def policy(self, version: str | None) -> Policy:
        return Policy(
            contracts=self.contracts,
            hooks=self.hooks,
            limits=self.limits,
            tools=self.tools,
            version=version,
        )


@dataclass(frozen=True, slots=True)
class Language:
    """How a guard reads bundles. It stays when a bundle is reloaded."""

    operators: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    selectors: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    mode: Mode | None = None
    max_bytes: int = DEFAULT_MAX_BYTES


def language_of(options: BundleOptions) -> tuple[Language, GuardOptions]:
    """How to read the bundle, and the options that are left for the guard."""
    mode = options.get("mode")
    check_mode(mode, "Edictum", optional=True)
    language = Language(
        options.get("custom_operators") or {},
        options.get("custom_selectors") or {},
        mode,
        options.get("max_bytes", DEFAULT_MAX_BYTES),
    )
    rest = {
        name: value
        for name, value in options.items()
        if name not in ("mode", "custom_operators", "custom_selectors", "max_bytes")
    }
    return language, cast("GuardOptions", rest)


@dataclass(frozen=True, slots=True)
class Text:
    """One layer: its content, and the name that errors give it."""

    name: str
    content: bytes | str


def read_files(paths: Sequence[str | os.PathLike[str]], max_bytes: int) -> list[Text]:
    """The contents of files. A file that is larger than allowed is not read."""
    if not paths:
        raise EdictumConfigError(
            "from_yaml() requires at least one path.", hint="Pass the path of a YAML file."
        )
    return [Text(str(path), _read(Path(path), max_bytes)) for path in paths]


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise EdictumConfigError(
            f"{path} cannot be read: {exc.strerror or exc}.",
            hint="Pass the path of a readable file.",
        ) from exc


def as_texts(layers: Sequence[str | bytes | os.PathLike[str]], max_bytes: int) -> list[Text]:
    """Layers given as YAML text, or as Path objects."""
    texts = []
    for number, layer in enumerate(layers):
        name = "<string>" if len(layers) == 1 else f"<string {number + 1}>"
        if isinstance(layer, (str, bytes)):
            texts.append(Text(name, layer))
        elif isinstance(layer, os.PathLike):
            texts += read_files([layer], max_bytes)
        else:
            raise EdictumConfigError(
                f"A bundle is {type(layer).__name__}.",
                hint="Pass YAML as text or bytes, or a Path.",
            )
    if not texts:
        raise EdictumConfigError(
            "No bundle was given.", hint="Pass YAML as text or bytes, or a Path."
        )
    return texts


def parse_layers(texts: Sequence[Text], language: Language) -> tuple[Bundle, CompositionReport]:
    """The composed bundle; the errors of all layers are reported together, warnings are logged."""
    from edictum.contracts.compose import compose
    from edictum.contracts.parse import parse
    from edictum.contracts.problems import BundleError, Problem

    dialect = _dialect(language)
    bundles: list[Bundle] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            bundles.append(parse(text.content, text.name, dialect))
        except BundleError as exc:
            problems += exc.problems
    if problems:
        raise BundleError(problems)
    bundle, report = compose(bundles)
    for warning in report.warnings[:MAX_LOGGED]:
        logger.warning("%s", warning)
    if len(report.warnings) > MAX_LOGGED:
        logger.warning("... and %d more warnings", len(report.warnings) - MAX_LOGGED)
    return bundle, report


def _dialect(language: Language) -> Any:
    from edictum.contracts.parse import Dialect

    return Dialect.of(language.operators, language.selectors, language.max_bytes)


def build_policy(
    base: Base, bundle: Bundle, language: Language, redaction: RedactionPolicy
) -> Policy:
    """The bundle's policy, with what was given in Python beside it; Python's tool entries win."""
    from edictum.contracts.compile import compile_bundle, limits_with

    made = compile_bundle(bundle, _dialect(language), mode=language.mode, redaction=redaction)
    return Policy(
        contracts=(*base.contracts, *made.contracts),
        hooks=base.hooks,
        limits=limits_with(base.limits, made.session_limits),
        session_limits=made.session_limits,
        tools={**made.tools, **base.tools},
        success_rules=made.success_rules,
        version=bundle.version,
        unlisted=made.unlisted,
        mode=made.mode,
        # The default limits observe with a bundle that observes; limits that somebody gave are
        # meant.
        enforce_limits=made.mode == "enforce" or base.limits is not None,
    )


def observability_sinks(bundle: Bundle) -> list[Any] | None:
    """The audit sinks that a bundle asks for; None when it asks for none."""
    from edictum.audit import FileAuditSink, StdoutAuditSink

    wanted = bundle.observability
    if wanted.get("otel", {}).get("enabled"):
        logger.warning(
            "%s: observability.otel is accepted and does nothing: OpenTelemetry is not part of this"
            " version",
            bundle.source,
        )
    sinks: list[Any] = [StdoutAuditSink()] if wanted.get("stdout") else []
    if wanted.get("file"):
        sinks.append(FileAuditSink(wanted["file"]))
    return sinks or None


def session_store(bundle: Bundle) -> Ledger | None:
    """The ledger that a bundle's ``session:`` section names; None when it names none."""
    wanted = bundle.session
    if not {"store", "lease", "ttl"} & wanted.keys():
        return None
    return open_ledger(
        wanted.get("store", "memory:"), lease_s=wanted.get("lease"), ttl_s=wanted.get("ttl")
    )


# --- Templates ------------------------------------------------------------------------------------


def list_templates(
    template_dirs: Sequence[str | os.PathLike[str]] | None = None,
) -> list[TemplateInfo]:
    """The templates in the given directories, then the built-in ones whose names they do not
    take.
    """
    found: dict[str, TemplateInfo] = {}
    for directory, builtin in [
        *((Path(each), False) for each in template_dirs or ()),
        (BUILTIN_TEMPLATES, True),
    ]:
        for path in sorted(directory.glob("*.yaml")) if directory.is_dir() else ():
            found.setdefault(path.stem, TemplateInfo(path.stem, path, builtin))
    return list(found.values())


def find_template(name: str, template_dirs: Sequence[str | os.PathLike[str]] | None) -> Path:
    """The file of a template. Only names that are listed can be found, so a name cannot lead
    anywhere else.
    """
    templates = {info.name: info.path for info in list_templates(template_dirs)}
    if name not in templates:
        known = ", ".join(sorted(templates)) or "none"
        raise EdictumConfigError(
            f"Template '{name}' not found. Available: {known}.",
            hint="Use one of them, or pass template_dirs.",
        )
    return templates[name]
