"""Loading has a bound, whatever the text: its work grows with the size and not faster, and the
largest texts end in time and memory.

No clock is read to show it. Work is counted, in lines and calls of Python; what the engines below
do in C is held by a watchdog that is far above what it takes, and by a limit on memory, both in a
process of their own.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adversarial
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edictum import Edictum, EdictumConfigError
from edictum.contracts import _reach as reach
from edictum.contracts import _regex as regex
from edictum.contracts import _selectors as selectors
from edictum.contracts._reach import MAX_COMPARISONS, Guesses, Names, Reach
from edictum.contracts._regex import PatternBudget, PatternError, PatternSet, compile_pattern
from edictum.core import sensitive_keys
from support.effort import effort

SIZES = (600, 6_000, 12_000)
# In ``make soak`` as large as a bundle may be.
LARGE = dict.fromkeys(
    ("file", "value", "scalar", "name", "alias", "pattern"), effort(250_000, soak=1_000_000)
)
USUAL = effort(1 << 15, soak=1 << 17)
REMEMBERED = (
    regex.compile_pattern,
    regex.pattern_set,
    selectors._parse_builtin,
    selectors._parse_path,
    sensitive_keys._is_sensitive,
    fnmatch._compile_pattern,
)
GROUPS = sorted({name.partition("/")[0] for name in adversarial.DOCUMENTS})
CHILD = """
import faulthandler, logging, resource, signal, sys
sys.path.insert(0, sys.argv[1])
import adversarial
from edictum import Edictum, EdictumConfigError
logging.disable(logging.CRITICAL)
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
faulthandler.register(signal.SIGPROF, chain=True)  # says where it was, and then it ends
for name in sys.argv[3:]:
    signal.setitimer(signal.ITIMER_PROF, 60)  # of CPU time: others may use the machine too
    try:
        Edictum.from_yaml_string(adversarial.DOCUMENTS[name](int(sys.argv[2])))
        print(name, "loads", flush=True)
    except EdictumConfigError:
        print(name, "refused", flush=True)
"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("edictum")
    before, logger.level = logger.level, logging.CRITICAL
    yield
    logger.setLevel(before)


def load(text: str | bytes) -> None:
    try:
        Edictum.from_yaml_string(text)
    except EdictumConfigError:
        return


def work(text: str) -> int:
    """How many lines are run and how many functions called, those written in C included, to load a
    text that is not remembered.
    """
    for cache in REMEMBERED:
        cache.cache_clear()
    re.purge()
    return events(lambda: load(text))


def events(action: Callable[[], Any]) -> int:
    count = 0

    def line(_frame: Any, _event: str, _arg: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def call(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(line)
    sys.setprofile(call)
    try:
        action()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", adversarial.DOCUMENTS)
def test_work_grows_with_the_size_and_not_faster(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        reach, "MAX_COMPARISONS", 500
    )  # below it names and globs are compared one by one
    monkeypatch.setattr(reach, "MAX_GUESSING", 5_000)  # the same for names that may be misspelt
    tiny, small, large = (adversarial.DOCUMENTS[name](size) for size in SIZES)
    load(tiny)  # what is made once for all loads is made now
    assert work(large) <= 2.5 * work(small) + 1_000


def test_the_measure_sees_work_that_grows_faster() -> None:
    def pairs(count: int) -> int:
        return sum(one < other for one in range(count) for other in range(count))

    assert events(lambda: pairs(200)) > 3.5 * events(lambda: pairs(100))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("group", GROUPS)
def test_large_texts_load_or_are_refused_in_time_and_memory(group: str) -> None:
    names = [name for name in adversarial.DOCUMENTS if name.partition("/")[0] == group]
    command = [
        sys.executable,
        "-c",
        CHILD,
        str(Path(__file__).parent),
        str(LARGE.get(group, USUAL)),
        *names,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2_000:]
    assert [line.split()[0] for line in ran.stdout.splitlines()] == names


PIECES = st.sampled_from(
    [
        "[",
        "]",
        "{",
        "}",
        ": ",
        ", ",
        "- ",
        "\n",
        "\n  ",
        "'",
        '"',
        "&a ",
        "*a",
        "<<",
        "!",
        "|",
        "?",
        "#",
        "a",
        "9",
        "\\",
        "\t",
        adversarial.HEAD,
        "contracts:\n",
        adversarial.contract(0, adversarial.EXISTS),
        "(",
        ")",
        "{9}",
        "*",
        "\\w",
    ]
)


@pytest.mark.soak
@pytest.mark.slow
@settings(
    max_examples=effort(20, soak=300), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.lists(PIECES, min_size=1, max_size=8))
def test_the_work_of_anything_repeated_is_linear(pieces: list[str]) -> None:
    unit = "".join(pieces)
    small, large = (adversarial.repeated(unit, size) for size in (2_000, 4_000))
    work(small)
    assert work(large) <= 2.5 * work(small) + 2_000


@pytest.mark.soak
@pytest.mark.slow
@settings(
    max_examples=effort(15, soak=200), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.lists(PIECES, min_size=1, max_size=6))
def test_the_work_of_any_repeated_pattern_is_linear(pieces: list[str]) -> None:
    unit = "".join(pieces).replace("'", "").replace("\n", "")
    small, large = (adversarial.pattern(unit or "a")(size) for size in (2_000, 4_000))
    work(small)
    assert work(large) <= 2.5 * work(small) + 2_000


# --- What is said when a bound is reached ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("alias/bomb", "aliases make the document larger than 200000 values"),
        ("alias/deeper-and-deeper", "aliases nest the document more than 64 levels deep"),
        ("alias/long-key", "aliases stand for more than 8388608 characters"),
        ("pattern/counted-letters", "the pattern is too large"),
        ("pattern/a-counted-group", "the pattern is too large"),
        ("pattern/groups", "groups are nested more than 200 deep"),
        ("pattern/digits-of-a-count", "the repetition {1111"),
        ("sandbox/up", "this text has"),
    ],
)
def test_the_bound_is_named(name: str, said: str) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        Edictum.from_yaml_string(adversarial.DOCUMENTS[name](200_000))
    assert said in str(caught.value)


def test_too_many_names_to_compare_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("edictum").setLevel(logging.WARNING)
    guard = Edictum.from_yaml_string(
        adversarial.DOCUMENTS["contracts/unlisted-globs-on-both-sides"](200_000)
    )
    assert sum("too many names and globs" in record.message for record in caplog.records) == 1
    assert guard.evaluate("x1", {}).verdict == "allow"


def test_names_and_globs_meet() -> None:
    names = Names(["read_file", "send_*"])
    for tools, wanted in [
        (["read_file"], True),
        (["read_*"], True),
        (["send_mail"], True),
        (["send_*"], True),
        (["write"], False),
    ]:
        assert Reach().meet(tools, names) is wanted, tools
    assert Reach().meet(["a*"] * (MAX_COMPARISONS // 2 + 1), names) is None


def test_a_name_is_guessed_as_long_as_there_is_something_left_for_guessing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "MAX_GUESSING", len("refnd") * len("refund"))
    guesses = Guesses(Names(["refund"]))
    assert [guesses.of(name) for name in ("refnd", "refunt", "refnd")] == [
        "Did you mean 'refund'? ",
        "",
        "Did you mean 'refund'? ",
    ]


def test_a_pattern_is_charged_once_and_nothing_is_compiled_beyond_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(regex, "MAX_STEPS", 100_000)
    budget = PatternBudget()
    first = budget.compile(r"\w{50}a")
    assert first is not None
    left = budget.left
    assert (budget.compile(r"\w{50}a"), budget.left) == (first, left)
    with pytest.raises(PatternError, match="too large together"):
        budget.compile(r"\w{50}b")
    known = compile_pattern.cache_info().currsize
    assert budget.compile(r"\w{50}c") is None
    assert compile_pattern.cache_info().currsize == known
    assert PatternBudget(characters=10).most == 100_040


def test_patterns_that_do_not_fit_one_engine_are_searched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patterns = [
        f"(?:{letter}[a-z]{{30}}|[0-9]{{20}}{letter}).*[{letter}-z]{{40}}"
        for letter in "abcdefghij"
    ]
    for pattern in patterns:
        compile_pattern(pattern)
    monkeypatch.setattr(regex, "MAX_PROGRAM_MEMORY", 1 << 13)
    together, text = PatternSet(patterns), "c" * 31 + "-" * 400 + "z" * 40
    assert 0 not in together._match(text.encode())  # the engine gives up
    assert together.hits(text) == {0, 3}
    assert not together.any("c" * 30)
