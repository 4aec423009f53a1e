"""The benchmarks of the adapters and of the proxy: what they count, and what they say when
something cannot be measured.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hook_loop import HookLoopConformance, Loop

import edictum.adapters

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def benchmarks() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


def of(module: str) -> Any:
    return importlib.import_module(module)


# --- What a run gives -----------------------------------------------------------------------------


def entries(*seconds: float) -> list[tuple[float, float]]:
    return [(one, 10 * one) for one in seconds]


def test_a_call_is_cut_out_of_the_times_at_which_the_tool_was_entered() -> None:
    runs = of("adapter_runs")
    wide = [20.0] * (runs.FURTHER + 1)
    cut = runs.cut(entries(0.0, 5.0, 8.0, *wide, 8.0 + 2 * 3.0 + 0.5 * runs.FURTHER))
    assert cut == {"turn": (3.0, 30.0), "call": (pytest.approx(0.5), pytest.approx(5.0))}


def test_a_run_in_which_a_call_was_left_out_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="calls were asked for, 2 ran"):
        of("adapter_runs").cut(entries(1.0, 2.0))


@pytest.mark.parametrize("way", ["async", "sync"])
def test_every_round_has_a_run_of_each_and_all_governed_calls_are_counted(way: str) -> None:
    with closing(of("adapter_runs").Bench(HookLoopConformance(), way)) as bench:
        for _ in range(2):
            played = {who: sorted(kinds) for who, kinds in bench.play_round().items()}
            assert played == {"bare": ["call", "turn"], "governed": ["call", "turn"]}
        bench.check()


def test_an_adapter_that_is_not_wired_is_no_measurement() -> None:
    class Forgetful(HookLoopConformance):
        def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Any:
            return Loop(tools, script)

    with closing(of("adapter_runs").Bench(Forgetful(), "sync")) as bench:
        bench.play_round()
        with pytest.raises(RuntimeError, match="the guard counted 0"):
            bench.check()


def test_every_adapter_is_measured() -> None:
    folder = Path(edictum.adapters.__file__).parent
    adapters = {path.stem for path in folder.glob("[!_]*.py")} - {
        "mcp"
    }  # the proxy's, measured as a process
    assert set(of("bench_adapters").measured()) == adapters
    assert set(of("empty_hooks").EMPTY) <= adapters


# --- What is printed ------------------------------------------------------------------------------


def figures(bare: float, governed: float) -> dict[str, Any]:
    return {
        who: {kind: [(seconds, 2 * seconds)] * 3 for kind in ("turn", "call")}
        for who, seconds in (("bare", bare), ("governed", governed))
    }


def test_a_framework_is_a_row_and_one_that_failed_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = of("bench_adapters")
    found = {
        "framework": "Loop",
        "version": "1.2",
        "ways": {"async": figures(200e-6, 260e-6), "sync": figures(400e-6, 440e-6)},
    }
    bench.report(bench.lines_of(found), {"other": "ImportError: no module"})
    rows = {
        line.split("  ")[0]: line.split()
        for line in capsys.readouterr().out.splitlines()
        if "(" in line or "NOT" in line
    }
    assert rows["Loop 1.2"][2:] == [
        "200",
        "(200..200)",
        "260",
        "(260..260)",
        "60.00",
        "(60.00..60.00)",
        "1.30x",
        "-",
        "120",
        "(120..120)",
    ]
    assert rows["Loop 1.2, plain function"][-4:] == ["1.10x", "-", "80.00", "(80.00..80.00)"]
    assert rows["other"][1:3] == ["NOT", "MEASURED"]
    assert "other: NOT MEASURED, ImportError: no module" in rows


def test_the_proxy_s_row_has_median_percentile_and_what_is_added() -> None:
    seconds = {"bare": [0.002] * 99 + [0.050], "governed": [0.003] * 99 + [0.080]}
    assert of("bench_mcp_proxy").row("mcp 2", {"seconds": seconds}) == (
        "mcp 2",
        *("2.00", "50.00", "3.00", "80.00"),
        "1.00 (1.00..1.00)",
        *("1.5x", "1.5x"),
    )


# --- Venvs ----------------------------------------------------------------------------------------


def test_a_venv_that_is_not_there_is_not_made() -> None:
    lines, missing = of("bench_adapters").measure({"langchain": "no-such-venv"}, 0.0)
    assert (lines, missing) == (
        [],
        {"langchain": ".venvs/no-such-venv is not there; run: make frameworks"},
    )


def test_what_went_wrong_in_a_venv_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    venvs = of("venvs")

    def fall() -> None:
        print("what a framework prints")
        raise ExceptionGroup("several", [ExceptionGroup("more", [ValueError("no\nluck")])])

    said, sys.stdout = sys.stdout, sys.stdout
    try:
        venvs.answer(fall)
    finally:
        sys.stdout = said
    with pytest.raises(venvs.NotMeasured, match=r"^ValueError: no luck$"):
        venvs.read(capsys.readouterr().out, "")
    with pytest.raises(venvs.NotMeasured, match=r"^ImportError: gone$"):
        venvs.read("", "Traceback\n  a line\nImportError: gone\n")
    assert venvs.read('what a program prints\n{"ok": [1]}\n', "a warning") == [1]


@pytest.mark.skipif(
    not (ROOT / ".venvs" / "s1" / ".built").exists(),
    reason="the venv is not built; run: make frameworks",
)
def test_a_real_framework_answers_from_its_venv() -> None:
    (line, plain), missing = of("bench_adapters").measure({"pydantic_ai": "s1"}, 0.0)
    assert missing == {}
    assert (line.title.startswith("Pydantic AI "), plain.title.endswith(", plain function")) == (
        True,
        True,
    )
    assert set(line.figures) == {"bare", "empty hook", "governed"}
