"""Report what in a code base needs a change: ``python -m edictum.compat.report PATH ...``.

It reads Python files and bundles, imports and runs nothing of them, and prints one line for each
finding: file and line, what was found, what to write. The exit code is 1 if something must change.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import eq
from pathlib import Path
from typing import Any

from edictum._factories import take_language
from edictum.contracts._language import Language
from edictum.errors import EdictumConfigError

IGNORED_FOLDERS = {"node_modules", "__pycache__", "site-packages"}
# Replacements for names of 0.19, and for names that this library does not have.
NAMES = {
    "Decision": "Write Verdict.",
    "RuleResult": "Write ContractResult.",
    "ObserveContract": "Write ShadowContract.",
    "CheckPipeline": "Write guard.begin(), which returns a Ticket.",
    "GovernanceTelemetry": "Write configure_otel(): every governed call then makes a span.",
    "evaluate_expression": "Write guard.explain(...), which shows each condition.",
}
MODULES = {
    "edictum.rules": "Write edictum.contracts.",
    "edictum.telemetry": "Write configure_otel(): every governed call then makes a span.",
    "edictum.server": "The server client is not here: keep counters with backend='redis://...'.",
    "edictum.gate": "Write edictum mcp-proxy, or an adapter.",
    "edictum.workflow": "Workflows are not here.",
    "edictum.yaml_engine.evaluator": "Write guard.explain(...), which shows each condition.",
}
KEYWORDS = {"rules": "contracts", "on_block": "on_deny"}
MAKERS = {"Edictum", "from_yaml", "from_yaml_string", "from_template"}
ATTRIBUTES = {
    "block_reasons": "Write deny_reasons.",
    "rules_evaluated": "Write contracts_evaluated.",
    "observe_results": "Write shadow_results.",
}
# Calls to look at unless they have this keyword.
CALLS = {
    "pre_execute": (
        "",
        "pre_execute() only reads",
        "Write guard.begin(): a reading and a count of your own are a race.",
    ),
    "SemanticKernelAdapter": (
        "terminate_on_deny",
        "terminate_on_deny is False unless stated",
        "A run goes on after a denial here. Write terminate_on_deny=True to end it.",
    ),
}
BEHAVIOUR = {
    "max_attempts": "max_attempts=N lets N attempts through; the older library let N-1.",
    "tool_callable": "tool_callable= works; the parameter is called fn here.",
}


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One place in a code base. With ``must`` False it works, but should be reviewed."""

    file: str
    line: int
    what: str
    advice: str
    must: bool = True

    def __str__(self) -> str:
        kind = "change" if self.must else "look"
        return f"{self.file}:{self.line}: {kind}: {self.what}. {self.advice}"


def find_changes(paths: Iterable[Path], language: Language | None = None) -> list[Change]:
    """Return what is found in these files and folders, in the order of files and lines."""
    found: list[Change] = []
    for path in sorted(_list_files(paths)):
        content = path.read_bytes()
        if path.suffix == ".py":
            found += _examine_python(str(path), content)
        elif b"edictum/v1" in content:
            found += _examine_bundle(str(path), content, language or Language())
    return sorted(set(found))


def _list_files(paths: Iterable[Path]) -> Iterator[Path]:
    for root in paths:
        if not root.exists():
            hint = "Pass files or folders."
            raise EdictumConfigError(f"{root} does not exist.", hint=hint)
        if root.is_file():
            yield root
            continue
        for path in root.rglob("*"):
            parts = path.relative_to(root).parts
            is_skipped = any(part in IGNORED_FOLDERS or part.startswith(".") for part in parts)
            if path.suffix in (".py", ".yaml", ".yml") and path.is_file() and not is_skipped:
                yield path


# --- Bundles --------------------------------------------------------------------------------------


def _examine_bundle(file: str, content: bytes, language: Language) -> Iterator[Change]:
    from edictum.contracts._parse import examine
    from edictum.contracts._problems import BundleError

    try:
        bundle, problems = examine(content, file, language)
    except BundleError as exc:
        yield from (Change(file, it.line, it.message, it.hint) for it in exc.problems)
        return
    for must, several in ((True, problems.errors), (False, problems.warnings)):
        for problem in several:
            yield Change(file, problem.line, problem.message, problem.hint, must)
    if bundle is not None and bundle.mode is None:
        what = "'defaults.mode' is missing, enforce is assumed"
        advice = "Other implementations refuse the bundle; write 'defaults: {mode: enforce}'."
        yield Change(file, 1, what, advice, False)


# --- Python ---------------------------------------------------------------------------------------


def _examine_python(file: str, content: bytes) -> Iterator[Change]:
    if b"edictum" not in content:
        return
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError) as exc:
        line = getattr(exc, "lineno", None) or 1
        yield Change(file, line, "this is not Python that can be read", "Look yourself.", False)
        return
    for node in ast.walk(tree):
        for what, advice, must in _examine_node(node):
            yield Change(file, getattr(node, "lineno", 1), what, advice, must)


def _examine_node(node: ast.AST) -> Iterator[tuple[str, str, bool]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _examine_module(alias.name)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from _examine_import(node)
    elif isinstance(node, ast.Call):
        yield from _examine_call(node)
    elif isinstance(node, ast.Attribute):
        yield from _examine_attribute(node)
    elif isinstance(node, ast.Subscript) and _changes_claims(node):
        yield "claims of a Principal cannot be changed", "Make a new Principal.", True


def _changes_claims(node: ast.Subscript) -> bool:
    holder = node.value
    changes = isinstance(node.ctx, ast.Store | ast.Del)
    return changes and isinstance(holder, ast.Attribute) and holder.attr == "claims"


def _examine_module(module: str) -> list[tuple[str, str, bool]]:
    """Return the problems of importing a module; none if this library has it."""
    if module != "edictum" and not module.startswith("edictum."):
        return []
    for name in (module, ".".join(module.split(".")[:2])):
        if name in MODULES:
            return [(f"{module} is not here", MODULES[name], True)]
    return [] if _is_module(module) else [(f"{module} is not here", "Import from edictum.", True)]


def _is_module(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _examine_import(node: ast.ImportFrom) -> Iterator[tuple[str, str, bool]]:
    module = node.module or ""
    if wrong := _examine_module(module):
        yield from wrong
    elif module == "edictum" or module.startswith("edictum."):
        for alias in node.names:
            if alias.name != "*" and not _has_name(module, alias.name):
                advice = NAMES.get(alias.name, "See the page 'Compatibility'.")
                yield f"{module} has no {alias.name}", advice, True


def _has_name(module: str, name: str) -> bool:
    """Return whether a module of this library has a name; True if its framework is missing."""
    try:
        return hasattr(import_module(module), name) or _is_module(f"{module}.{name}")
    except (ImportError, EdictumConfigError):
        return True


def _examine_call(node: ast.Call) -> Iterator[tuple[str, str, bool]]:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    given = {keyword.arg for keyword in node.keywords}
    for old in sorted(KEYWORDS.keys() & given) if name in MAKERS else ():
        yield f"{name}({old}=...) is a keyword of 0.19", f"Write {KEYWORDS[old]}=.", True
    if name == "block" and _is_named(called, "HookDecision"):
        yield "HookDecision.block is a name of 0.19", "Write HookDecision.deny.", True
    unless, what, advice = CALLS.get(name, ("", "", ""))
    if what and unless not in given:
        yield what, advice, False
    for keyword in sorted(BEHAVIOUR.keys() & given):
        yield f"{keyword}= is used", BEHAVIOUR[keyword], False


def _is_named(called: ast.expr, owner: str) -> bool:
    value: Any = called.value if isinstance(called, ast.Attribute) else None
    return owner in (getattr(value, "id", None), getattr(value, "attr", None))


def _examine_attribute(node: ast.Attribute) -> Iterator[tuple[str, str, bool]]:
    if node.attr.startswith("_edictum_") and isinstance(node.ctx, ast.Store):
        option = node.attr.removeprefix("_edictum_")
        advice = f"Write it in the decorator: @postcondition(..., {option}=...)."
        yield f"a contract's {node.attr} cannot be set", advice, True
    elif node.attr in ATTRIBUTES:
        yield f"{node.attr} is a name of 0.19", ATTRIBUTES[node.attr], True
    elif node.attr == "schema_version":
        advice = "Compare with the version of the page 'Audit events'."
        yield "schema_version of events is another one here", advice, False


# --- Command line ---------------------------------------------------------------------------------


def run_report(arguments: Sequence[str] | None = None) -> int:
    """Print what was found; return 1 if something must change, and 2 if it cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m edictum.compat.report", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    for name in ("operator", "selector"):
        what = f"a custom {name} that bundles use"
        parser.add_argument(f"--{name}", action="append", default=[], metavar="NAME", help=what)
    options = parser.parse_args(arguments)
    try:
        operators = dict.fromkeys(options.operator, eq)
        selectors = dict.fromkeys(options.selector, dict)
        language, _ = take_language({"custom_operators": operators, "custom_selectors": selectors})
        found = find_changes(options.paths, language)
    except (EdictumConfigError, OSError) as exc:
        print(exc, file=sys.stderr)
        return 2
    for change in found:
        print(change)
    must = sum(change.must for change in found)
    print(f"{must} to change, {len(found) - must} to look at")
    return 1 if must else 0


if __name__ == "__main__":
    sys.exit(run_report())
