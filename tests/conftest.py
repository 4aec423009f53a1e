"""What all tests share."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support import shared_servers
from support.effort import SOAK, effort

settings.register_profile(
    "edictum",
    deadline=None,
    max_examples=effort(20),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not SOAK,
)
settings.load_profile("edictum")

# --- Which tests are run --------------------------------------------------------------------------

# Together these reach every branch of core/, outcomes.py and success.py. Tracing makes them take
# more than twice as long, so nothing else is traced.
TRACED = (
    "core",
    "gate",
    "audit",
    "approval",
    "harness",
    "typing",
    "compat/test_older_programs.py",
    "contracts/test_redacted_results.py",
    "contracts/test_postconditions.py",
    "contracts/test_bundle_settings.py",
    "contracts/test_custom_selectors.py",
    "contracts/test_left_out_arguments.py",
    "contracts/test_tool_check.py",
    "contracts/test_secrets_in_bundles.py",
    "contracts/test_data_frames.py",
    "contracts/test_objects_in_results.py",
)
NOT_TRACED = ("harness/execution",)
HERE = Path(__file__).parent
# Modules that exist for speed alone: the usual call, and conditions as generated code.
FAST_PATHS = ("edictum.runtime.fast_path", "edictum.contracts._generate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=["traced", "rest"],
        help="half of the tests: those that are run with coverage, or all the others",
    )
    parser.addoption(
        "--no-fast-path", action="store_true", help="run with the fast paths made unimportable"
    )


def is_in_traced_part(path: Path) -> bool:
    """Return whether the tests of a file are traced, but for those that are slow."""
    name = path.relative_to(HERE).as_posix()
    return name.startswith(TRACED) and not name.startswith(NOT_TRACED)


def is_traced(item: pytest.Item) -> bool:
    return is_in_traced_part(item.path) and item.get_closest_marker("slow") is None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without a test of the part: every worker would import them all."""
    part = config.getoption("part")
    if part is None or not collection_path.match("test_*.py"):
        return None
    if not is_in_traced_part(collection_path):
        return True if part == "traced" else None
    is_wanted = part == "traced" or "mark.slow" in collection_path.read_text()
    return None if is_wanted else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the part that was asked for."""
    if (part := config.getoption("part")) is not None:
        kept = [item for item in items if is_traced(item) == (part == "traced")]
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept


# --- Servers --------------------------------------------------------------------------------------


def has_workers(config: pytest.Config) -> bool:
    """Return whether this process hands the tests to others."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--no-fast-path"):
        assert "edictum.guard" not in sys.modules, "the guard has imported the fast path already"
        for name in FAST_PATHS:
            sys.modules[name] = None  # type: ignore[assignment]  # so that importing it fails
    if has_workers(config):
        shared_servers.prepare()


def pytest_unconfigure(config: pytest.Config) -> None:
    if has_workers(config):
        shared_servers.stop_all()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[tuple[str, str]]:
    """URL and origin of a Valkey that writes to disk before it answers."""
    with shared_servers.served("valkey") as found:
        yield found


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[tuple[str, str]]:
    with shared_servers.served("postgres") as found:
        yield found


@pytest.fixture(scope="session")
def broker_url() -> Iterator[str]:
    """A Valkey for what need not survive it."""
    with shared_servers.served("broker") as (url, origin):
        if not url:
            pytest.skip(origin)
        yield url


def get_url(server: tuple[str, str], record_property: Callable[[str, object], None]) -> str:
    """Return the URL of a server, and report where it comes from; skip the test without one."""
    url, origin = server
    record_property("session_store", origin)
    if not url:
        pytest.skip(origin)
    return url


@pytest.fixture
def valkey_url(
    valkey_server: tuple[str, str], record_property: Callable[[str, object], None]
) -> str:
    return get_url(valkey_server, record_property)


@pytest.fixture
def postgres_url(
    postgres_server: tuple[str, str], record_property: Callable[[str, object], None]
) -> str:
    return get_url(postgres_server, record_property)


# --- What every test finds ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _library_logs() -> None:
    """The library's logger as a program finds it: a server or framework that another test started
    may have reconfigured logging.
    """
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    for name in [
        name for name in logging.root.manager.loggerDict if name.split(".")[0] == "edictum"
    ]:
        logger = logging.getLogger(name)
        logger.disabled, logger.propagate = False, True
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that take turns a hundred times as often as usual, so that a race has every chance to
    show.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_05)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly which session stores were tested on the real thing: a store that was skipped must
    not go unnoticed.
    """
    reports = [
        report
        for group in terminalreporter.stats.values()
        for report in group
        if hasattr(report, "user_properties")
    ]
    stores = sorted(
        {
            value
            for report in reports
            for name, value in report.user_properties
            if name == "session_store"
        }
    )
    for store in stores:
        terminalreporter.write_line(
            f"session store {store}", red="NOT TESTED" in store, green="NOT TESTED" not in store
        )
    faults: Counter[str] = Counter()
    for name, times in (
        value
        for report in reports
        for kind, value in report.user_properties
        if kind == "session_fault"
    ):
        faults[name] += times
    if faults:
        listed = ", ".join(f"{times} x {name}" for name, times in sorted(faults.items()))
        terminalreporter.write_line(f"session faults made: {sum(faults.values())} ({listed})")
