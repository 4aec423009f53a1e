"""The shape of the library, held by tests: layers, who may construct what, and how long things may
get.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from edictum.core.config import LifecycleConfig
from edictum.core.effects import Effect, RunTool, Within
from edictum.runtime.handlers import EffectHandlers

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "edictum"
TESTS = ROOT / "tests"
FILES = sorted(SOURCE.rglob("*.py"))

# Each layer may import itself and what stands before it. Names are those of packages and modules
# directly under edictum.
LAYERS = [
    {"errors", "_version", "_optional"},
    {"core", "outcomes", "success", "findings", "_audit_event"},
    {"_logs", "stats", "health"},
    {
        "contracts",
        "sessions",
        "audit",
        "approval",
        "execution",
        "evaluation",
        "explanation",
        "redaction",
    },
    {"runtime"},
    {
        "_dry_run",
        "_previews",
        "_probes",
        "compat",
        "builtins",
        "_factories",
        "_watching",
        "_checks",
        "_merging",
        "call_options",
        "_options",
        "_callers",
        "otel",
        "prometheus",
    },
    {
        *("guard", "registry", "hooks", "limits", "session", "storage"),
        *("envelope", "pipeline", "yaml_engine"),
    },
    {"harness", "testing"},
    {"adapters", "cli", "console", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
IMPURE = {
    "asyncio",
    "time",
    "os",
    "uuid",
    "random",
    "logging",
    "yaml",
    "threading",
    "socket",
    "subprocess",
    "pathlib",
    "io",
    "sys",
}
CORE_MAY_IMPORT = {"core", "outcomes", "success", "findings", "errors", "_audit_event"}


def test_the_files_are_found() -> None:
    """Nothing below passes by finding nothing."""
    assert len(FILES) >= 45


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part(path: Path) -> str:
    """The package or module directly under edictum that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path, *, at_run_time: bool = True) -> Iterator[str]:
    """Every module that a file imports, by its full name."""
    tree = parse(path)
    skipped = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
        for body in test.body
        for node in ast.walk(body)
    }
    for node in ast.walk(tree):
        if at_run_time and id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module == "edictum":
                yield from (f"edictum.{alias.name}" for alias in node.names)


def edictum_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("edictum.")}


# --- Layers ---------------------------------------------------------------------------------------


def test_the_core_is_pure() -> None:
    """Standard library only, and of that nothing that waits, looks at the clock or touches the
    world.
    """
    core = [path for path in FILES if part(path) in ("core", "outcomes", "success", "findings")]
    assert len(core) >= 15
    for path in core:
        for name in imports(path):
            top = name.split(".")[0]
            if top == "edictum":
                assert name.split(".")[1] in CORE_MAY_IMPORT, f"{path.name} imports {name}"
            else:
                assert top in sys.stdlib_module_names, f"{path.name} imports {name}"
                assert top not in IMPURE, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if part(path) != "__init__"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_a_layer_imports_only_what_stands_below_it(path: Path) -> None:
    """core <- contracts, sessions, audit, approval, execution <- runtime <- guard <- harness <-
    adapters, cli.
    """
    mine = part(path)
    assert mine in RANK, f"{mine} has no layer: say in LAYERS where it belongs"
    for other in edictum_parts(path):
        assert RANK[other] <= RANK[mine], f"{path.relative_to(SOURCE)} imports edictum.{other}"


def test_adapters_import_neither_each_other_nor_a_backend() -> None:
    """An adapter only translates. What adapters share stands in modules with an underscore."""
    adapters = [
        path for path in FILES if part(path) == "adapters" and not path.name.startswith("_")
    ]
    for path in adapters:
        for name in imports(path):
            if name.startswith("edictum.adapters."):
                assert name.startswith("edictum.adapters._"), f"{path.name} imports {name}"
            assert not name.startswith(("edictum.sessions", "edictum.audit", "edictum.approval")), (
                f"{path.name} imports {name}"
            )


def test_only_the_contracts_read_yaml() -> None:
    """One importer of a YAML library."""
    importers = {
        part(path) for path in FILES if any(name.split(".")[0] == "yaml" for name in imports(path))
    }
    assert importers <= {"contracts"}


PORT_METHODS = {
    *("reserve", "settle", "renew", "snapshot", "reset"),  # Ledger
    *("emit", "take", "append_last"),  # AuditSink, and the sink in memory
    *("request_approval", "wait_for_decision", "withdraw"),  # ApprovalBackend
    *("now", "new_id"),  # Clock
    *("try_reserve", "try_commit"),
}


def test_the_core_calls_no_port() -> None:
    """It yields effects; drivers ask the ledger, the sinks, the approval backend and the clock."""
    called = {
        f"{path.relative_to(SOURCE)}:{node.lineno} .{node.func.attr}()"
        for path in FILES
        if part(path) == "core"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in PORT_METHODS
    }
    assert called == set()
    config = LifecycleConfig.__slots__  # type: ignore[attr-defined]  # made by ``record``
    assert not {"ledger", "sinks", "local_sink", "clock", "approval_backend"} & set(config)


# --- Who may construct what -----------------------------------------------------------------------


def calls_of(name: str) -> set[str]:
    """The files in which ``name(...)`` is written."""
    return {
        str(path.relative_to(SOURCE))
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) == name or getattr(node.func, "attr", None) == name)
    }


def test_audit_events_are_made_in_one_place() -> None:
    """Besides the suite for sinks, which makes one to hand it over."""
    assert calls_of("AuditEvent") - {"testing/audit.py"} == {"core/events.py"}


def test_the_lifecycle_alone_says_what_a_call_needs() -> None:
    """Effects are yielded nowhere else: RunTool to run, Entry to record, Reservation and Settlement
    to count.
    """
    yielding = {
        str(path.relative_to(SOURCE))
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Yield)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", getattr(node.value.func, "attr", ""))
        in {effect.__name__ for effect in typing.get_args(Effect)}
    }
    assert "core/lifecycle/admission.py" in yielding
    assert all(path.startswith("core/") for path in yielding), yielding


def test_every_effect_has_a_handler() -> None:
    """A new effect without one would break at its first call; RunTool is the drivers' own."""
    from edictum import Edictum

    effects = set(typing.get_args(Effect)) - {RunTool, Within}  # the driver's own
    assert len(effects) >= 9
    ports = Edictum()._state.handlers
    assert isinstance(ports, EffectHandlers)
    assert set(ports.by_kind) == effects


# --- How long things may get ----------------------------------------------------------------------


def function_lengths() -> dict[str, int]:
    """Lines of every function, without its docstring, decorators and signature's first line counted
    as one.
    """
    lengths = {}
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if ast.get_docstring(node, clean=False) is not None:
                    doc = node.body[0]
                    length -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
                lengths[f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"] = length
    return lengths


def test_functions_are_short() -> None:
    """None over 60 lines, half of them at most 8, nineteen in twenty at most 35."""
    lengths = function_lengths()
    assert len(lengths) >= 400
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    values = sorted(lengths.values())
    assert statistics.median(values) <= 8
    assert values[int(len(values) * 0.95)] <= 35


def test_every_function_is_typed() -> None:
    """Arguments and results, private ones included; mypy checks that they are right."""
    untyped = []
    for path in FILES:
        for node in ast.walk(parse(path)):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and node.returns is None
                and node.name not in ("record", "__await__")
            ):
                untyped.append(f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}")
    assert untyped == []


def test_every_module_says_what_it_is_for() -> None:
    """In its first line; an empty __init__ has nothing to say."""
    silent = [
        str(path.relative_to(SOURCE))
        for path in FILES
        if path.read_text().strip() and not ast.get_docstring(parse(path))
    ]
    assert set(silent) <= {"_version.py"}


def test_nothing_is_left_to_do() -> None:
    """Open ends are issues, not comments."""
    words = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X:"]))
    texts = [*FILES, *TESTS.rglob("*.py")]
    assert len(texts) >= 70
    assert [str(path.relative_to(ROOT)) for path in texts if words.search(path.read_text())] == []


def test_tests_use_fakes_not_mocks() -> None:
    """At most one mock in a thousand lines of tests."""
    files = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    mocks = [
        str(path.relative_to(TESTS))
        for path in files
        if re.search(r"\bunittest\.mock\b|\bMagicMock\b|\bmock\.patch\b", path.read_text())
    ]
    assert lines >= 3_000
    assert len(mocks) <= lines / 1_000, mocks


THEIRS = {"test_pause.py"}  # other conventions


def test_every_test_says_what_it_shows() -> None:
    """A docstring of one sentence or two, for the tests of the gate."""
    ours = [
        path
        for name in ("gate", "core", "audit", "approval", "meta")
        for path in (TESTS / name).glob("test_*.py")
        if path.name not in THEIRS
    ]
    assert len(ours) >= 14
    silent = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in ours
        for node in ast.walk(parse(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []
