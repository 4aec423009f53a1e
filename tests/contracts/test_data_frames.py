"""Arrays, series, frames and tables in results: searched whole, redacted as what they are, and
written for the model.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import Edictum, RedactionPolicy, Verdict, postcondition
from edictum.contracts._selectors import text_of
from edictum.core.values import digest, is_same, to_json
from edictum.outcomes import ToolExecutionResult, ToolFailure, outcome_to_model_content
from support.effort import effort

SSN = "123-45-6789"
TOKEN = "ghp_" + "a1B2" * 9
BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: frames}}
tools: {{t: {{side_effect: read}}}}
contracts:
  - {{id: r, type: post, tool: t, when: {when}, then: {{effect: {effect}, message: m}}}}
"""
NUMBER = r"{output.text: {matches: '\d{3}-\d{2}-\d{4}'}}"
SECRET = "{output.text: {contains_secret: true}}"
SUPPRESSED = "[OUTPUT SUPPRESSED] m"


def dispatch(value: Any, when: str = NUMBER, effect: str = "redact") -> ToolExecutionResult:
    guard = Edictum.from_yaml_string(BUNDLE.format(when=when, effect=effect))
    outcome = guard.dispatch_sync("t", {}, lambda: value)
    assert isinstance(outcome, ToolExecutionResult)
    said = outcome_to_model_content(outcome) + repr([e.to_dict() for e in guard.local_sink.events])
    if outcome.findings:
        assert SSN not in said
        assert TOKEN not in said
    return outcome


def texts_with(secret: str, count: int = 300) -> list[str]:
    """Ordinary cells, and one with a secret in the middle, which every text leaves out."""
    return [f"row {n}" if n != count // 2 else f"it is {secret}." for n in range(count)]


MAKERS: dict[str, Callable[[list[str]], Any]] = {
    "pandas frame": lambda cells: pd.DataFrame({"n": range(len(cells)), "note": cells}),
    "pandas frame of objects": lambda cells: pd.DataFrame({"note": cells}, dtype=object),
    "pandas frame of categories": lambda cells: pd.DataFrame({"note": pd.Categorical(cells)}),
    "pandas frame with labels": lambda cells: pd.DataFrame({"n": range(len(cells))}, index=cells),
    "pandas frame with a name twice": lambda cells: pd.DataFrame(
        [[cell, "x"] for cell in cells], columns=["note", "note"]
    ),
    "pandas series": pd.Series,
    "pandas series with a name": lambda cells: pd.Series(cells, name="note"),
    "pandas series with labels": lambda cells: pd.Series(cells, index=map(str, range(len(cells)))),
    "pandas series with numbers": lambda cells: pd.Series(
        cells, index=range(5, len(cells) + 5)[::-1]
    ),
    "numpy texts": np.array,
    "numpy objects": lambda cells: np.array([*cells[:-1], 3], dtype=object),
    "numpy rows": lambda cells: np.array(cells).reshape(2, -1),
    "polars frame": lambda cells: pl.DataFrame({"n": range(len(cells)), "note": cells}),
    "polars series": pl.Series,
    "polars series with a name": lambda cells: pl.Series("note", cells),
    "pyarrow table": lambda cells: pa.table({"n": list(range(len(cells))), "note": cells}),
    "pyarrow batch": lambda cells: pa.record_batch({"note": cells}),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(("secret", "when"), [(SSN, NUMBER), (TOKEN, SECRET)], ids=["ssn", "token"])
def test_a_cell_in_the_middle_is_found_and_replaced_in_a_copy(
    make: Callable[[list[str]], Any], secret: str, when: str
) -> None:
    value = make(texts_with(secret))
    outcome = dispatch(value, when)
    assert [finding.contract_id for finding in outcome.findings] == ["r"]
    assert type(outcome.value) is type(value)
    shown, clean = (dispatch(each, when).output for each in (outcome.value, make(texts_with("x"))))
    assert secret not in json.dumps(shown, default=whole)
    assert whole(outcome.value) == whole(make(texts_with("[REDACTED]")))
    assert whole(value) == whole(make(texts_with(secret))), "the tool's own is not changed"
    assert whole(clean["result"]) == whole(make(texts_with("x")))


def whole(value: Any) -> str:
    """Return all cells, by the libraries' own means."""
    if isinstance(value, pd.DataFrame | pd.Series):
        return str(value.to_csv())
    if isinstance(value, pl.DataFrame):
        return value.write_csv()
    if isinstance(value, pa.Table | pa.RecordBatch):
        return repr(value.to_pydict())
    return repr([getattr(value, "name", None), [*map(str, np.asarray(value).flat)]])


def test_a_frame_without_a_secret_is_returned_itself() -> None:
    for make in MAKERS.values():
        value = make(texts_with("nothing"))
        assert dispatch(value, SECRET).value is value


def test_a_frame_is_suppressed_where_that_is_wanted() -> None:
    frame = MAKERS["pandas frame"](texts_with(SSN))
    assert dispatch(frame, effect="deny").value == SUPPRESSED


LARGE: dict[str, Callable[[], Any]] = {
    "pandas": lambda: MAKERS["pandas frame"](texts_with(SSN, 20_000)),
    "polars": lambda: MAKERS["polars frame"](texts_with(SSN, 20_000)),
    "pyarrow": lambda: MAKERS["pyarrow table"](texts_with(SSN, 20_000)),
    "numpy": lambda: MAKERS["numpy rows"](texts_with(SSN, 20_000)),
    "list": lambda: texts_with(SSN, 20_000),
    "inside": lambda: {"rows": MAKERS["pandas frame"](texts_with(SSN, 20_000))},
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
async def test_a_large_value_is_searched_and_redacted_beside_the_event_loop(
    make: Callable[[], Any],
) -> None:
    ticks = at_return = 0

    def read() -> Any:
        nonlocal at_return
        made, at_return = make(), ticks
        return made

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    guard = Edictum.from_yaml_string(BUNDLE.format(when=NUMBER, effect="redact"))
    ticking = asyncio.ensure_future(tick())
    outcome = await guard.dispatch("t", {}, read)
    ticking.cancel()
    assert isinstance(outcome, ToolExecutionResult)
    assert ticks > at_return
    assert [finding.contract_id for finding in outcome.findings] == ["r"]
    assert SSN not in str(to_json(outcome.value))
    assert "[REDACTED]" in str(to_json(outcome.value))


@pytest.mark.parametrize("effect", ["redact", "deny"])
async def test_a_search_that_does_not_end_within_the_deadline_shows_nothing(effect: Any) -> None:
    release = threading.Event()

    @postcondition("t", effect=effect)
    def slow(call: Any, result: Any) -> Verdict:
        release.wait(60)
        return Verdict.pass_()

    guard = Edictum(contracts=[slow])
    outcome = await guard.dispatch("t", {}, LARGE["pandas"], timeout_s=0.2)
    release.set()
    assert isinstance(outcome, ToolExecutionResult)
    reason = "the result could not be searched within the 0.2 s of its call"
    assert outcome.value == (f"[OUTPUT SUPPRESSED] Postcondition error: TimeoutError: {reason}")
    assert [event.action for event in guard.local_sink.events][-1] == "call_executed"


async def test_a_redaction_that_does_not_end_within_the_deadline_shows_nothing() -> None:
    release = threading.Event()

    def hide(result: Any) -> str:
        release.wait(60)
        return "hidden"

    @postcondition("t", effect="redact", redact=hide)
    async def found(call: Any, result: Any) -> Verdict:
        return Verdict.fail("found")

    for value in ("x" * 200_000, LARGE["list"]()):
        release.clear()
        guard = Edictum(contracts=[found])
        outcome = await guard.dispatch("t", {}, lambda value=value: value, timeout_s=0.2)
        release.set()
        assert isinstance(outcome, ToolExecutionResult)
        assert "could not be searched within the 0.2 s of its call" in str(outcome.value)
        assert str(outcome.value).count("x") < 10


async def test_a_caller_that_is_cancelled_during_the_search_loses_no_event() -> None:
    started, release = threading.Event(), threading.Event()

    @postcondition("t", effect="redact")
    def slow(call: Any, result: Any) -> Verdict:
        started.set()
        release.wait(60)
        return Verdict.pass_()

    guard = Edictum(contracts=[slow])
    task = asyncio.ensure_future(guard.dispatch("t", {}, LARGE["pandas"]))
    await asyncio.to_thread(started.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    last = guard.local_sink.last()
    assert (last.action, "SUPPRESSED" in str(last.result_summary)) == ("call_executed", True)


@given(st.lists(st.text(max_size=8), max_size=12), st.booleans())
def test_the_text_that_is_searched_has_every_cell_as_it_is(cells: list[str], many: bool) -> None:
    """Whatever the cells hold that printing would escape, however many there are."""
    cells = ["plain"] * (1_500 if many else 0) + cells
    frame = pd.DataFrame({"note": pd.Series(cells, dtype=object)})
    for value in (cells, frame, {"inside": frame}):
        text = text_of(value) or ""
        assert all(cell in text for cell in cells)


@pytest.mark.slow
def test_a_million_rows_with_one_secret() -> None:
    """It is found, and taken out of a frame that is otherwise the same."""
    count = 1_000_000
    notes = [f"order {n} shipped" for n in range(count)]
    notes[count // 2] = f"key {TOKEN}"
    frame = pd.DataFrame({"id": np.arange(count), "note": notes})
    outcome = dispatch_only(frame, SECRET, timeout_s=120)
    assert outcome.value.loc[count // 2, "note"] == "key [REDACTED]"
    changed = outcome.value["note"] != frame["note"]
    assert changed.sum() == 1
    assert outcome.value["id"].equals(frame["id"])
    assert outcome.value.dtypes.equals(frame.dtypes)


ROWS: dict[str, Callable[[list[str]], Any]] = {
    name: MAKERS[name] for name in ("pandas frame", "polars frame", "pyarrow table", "numpy texts")
}


@pytest.mark.soak
@pytest.mark.parametrize("effect", ["redact", "deny"])
@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)
def test_many_rows_with_one_secret_in_each_library(
    make: Callable[[list[str]], Any], effect: str
) -> None:
    """In the default time of a tool: ``make soak`` has a million rows."""
    cells = texts_with(TOKEN, effort(20_000, soak=1_000_000))
    value = make(cells)
    outcome = dispatch_only(value, SECRET, timeout_s=45, effect=effect)
    if effect == "deny":
        assert outcome.value == SUPPRESSED
        return
    assert type(outcome.value) is type(value)
    shown = whole(outcome.value)
    assert (TOKEN in shown, shown.count("[REDACTED]")) == (False, 1)


def dispatch_only(
    value: Any, when: str, timeout_s: float, effect: str = "redact"
) -> ToolExecutionResult:
    guard = Edictum.from_yaml_string(BUNDLE.format(when=when, effect=effect))
    outcome = guard.dispatch_sync("t", {}, lambda: value, timeout_s=timeout_s)
    assert isinstance(outcome, ToolExecutionResult)
    assert [finding.contract_id for finding in outcome.findings] == ["r"]
    return outcome


def test_other_columns_are_not_touched() -> None:
    """Nanoseconds, decimals and lists would not come back from Python's own types."""
    kinds = {"at": pl.Datetime("ns"), "note": pl.String, "many": pl.List(pl.Int8)}
    given = pl.DataFrame({"at": [1], "note": [SSN], "many": [[1, 2]]}, schema=kinds)
    shown = dispatch(given).value
    assert shown.drop("note").equals(given.drop("note"))
    assert shown.schema == given.schema
    assert dispatch(given.to_arrow()).value.drop_columns("note") == given.drop("note").to_arrow()
    clean = {"x": given.drop("note")}
    assert RedactionPolicy().redact_secrets(clean)["x"] is clean["x"]


def test_frames_inside_of_a_structure() -> None:
    value = {"pages": [MAKERS["polars frame"](texts_with(SSN))], "n": np.int64(3)}
    shown = dispatch(value).value
    assert shown["n"] == 3
    assert shown["pages"][0]["note"][150] == "it is [REDACTED]."


# --- Names of columns and labels ------------------------------------------------------------------


def test_columns_under_sensitive_names_are_hidden() -> None:
    cells = {"user": ["a", "b"], "password": ["hunter2", "hunter3"]}
    for value in (pd.DataFrame(cells), pl.DataFrame(cells), pa.table(cells)):
        shown = dispatch(value, "{output: {contains_secret: true}}").value
        assert type(shown) is type(value)
        assert [str(cell) for cell in shown["password"]] == ["[REDACTED]"] * 2
        assert [str(cell) for cell in shown["user"]] == ["a", "b"]
    row = pd.DataFrame(cells).loc[0]
    assert dispatch(row, SECRET).value.to_dict() == {"user": "a", "password": "[REDACTED]"}
    fields = np.array([("a", "hunter2")], dtype=[("user", "U9"), ("password", "U9")])
    shown = dispatch(fields, "{output: {contains_secret: true}}").value
    assert shown == {"user": ["a"], "password": "[REDACTED]"}


def test_names_and_labels_are_searched() -> None:
    frame = pd.DataFrame({SSN: [1], "b": [2]})
    assert list(dispatch(frame).value.columns) == ["[REDACTED]", "b"]
    assert dispatch(pl.DataFrame({SSN: [1]})).value.columns == ["[REDACTED]"]
    assert dispatch(pa.table({SSN: [1]})).value.column_names == ["[REDACTED]"]
    assert dispatch(pd.Series([1], name=SSN)).value.name == "[REDACTED]"
    assert dispatch(pd.Series([1, 2], index=["x", SSN])).value.index.tolist() == ["x", "[REDACTED]"]


def test_what_cannot_be_written_back_is_plain_data() -> None:
    """Labels of two levels, the name of a label, a column of fixed texts, an array of pyarrow."""
    levels = pd.MultiIndex.from_tuples([("a", SSN)], names=["x", "y"])
    shown = dispatch(pd.DataFrame({"n": [1]}, index=levels)).value
    assert shown == {"x": ["a"], "y": ["[REDACTED]"], "n": [1]}
    named = pd.DataFrame({"n": [1]}, index=pd.Index(["a"], name=SSN))
    assert dispatch(named).value == {"[REDACTED]": ["a"], "n": [1]}
    twice = pd.Series([1, 2], index=[SSN, SSN])
    assert dispatch(twice).value == {"index": ["[REDACTED]"] * 2, "value": [1, 2]}
    known = pl.DataFrame({"n": [SSN]}, schema={"n": pl.Enum([SSN])})
    assert dispatch(known).value == {"n": ["[REDACTED]"]}
    same = pa.Table.from_arrays([pa.array([SSN]), pa.array([1])], names=["n", "n"])
    assert dispatch(same).value.columns[0].to_pylist() == ["[REDACTED]"]
    assert dispatch(pa.array(["x", SSN])).value == ["x", "[REDACTED]"]
    assert dispatch(np.array([b"x", SSN.encode()])).value == ["x", "[REDACTED]"]


def test_numbers_are_searched_and_suppressed_because_they_cannot_be_cut() -> None:
    cards = list(range(1000, 1300))
    when = "{output.text: {matches: '1150'}}"
    for value in (np.array(cards), pd.DataFrame({"n": cards}), pl.Series(cards), pa.array(cards)):
        assert dispatch(value, when).value == SUPPRESSED


# --- What is not known ----------------------------------------------------------------------------


class Opaque:
    """An array of a library that is not known; its text leaves out the middle."""

    def __array__(self) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "[1 2 ... 9]"


class Closed:
    """A tensor of a library that is not known, and that cannot be read."""

    dtype = "float32"

    def tolist(self) -> Any:
        raise RuntimeError("it is on another device")


class Tensor(Closed):
    def tolist(self) -> Any:
        return texts_with(SSN)


def test_a_tensor_is_read_as_a_list() -> None:
    assert dispatch(Tensor()).value == texts_with("[REDACTED]")


UNREADABLE = {
    "alone": Opaque(),
    "inside": {"x": [Opaque()]},
    "closed": Closed(),
    "masked": np.ma.array([SSN, "x"], mask=[True, False]),
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("when", [NUMBER, SECRET, "{output: {contains_secret: true}}"])
def test_what_cannot_be_read_whole_is_suppressed(value: Any, when: str) -> None:
    outcome = dispatch(value, when)
    assert SUPPRESSED.split()[0] in json.dumps(outcome.output)
    assert "cannot be read whole" in outcome.findings[0].message
    assert type(RedactionPolicy().redact_secrets(value)) in (str, dict)


def test_a_failed_call_shows_the_text_of_what_cannot_be_read() -> None:
    guard = Edictum(success_check=lambda tool, result: False)
    outcome = guard.dispatch_sync("t", {}, lambda: {"x": Opaque()})
    assert isinstance(outcome, ToolFailure)
    assert outcome.value == {"x": "[1 2 ... 9]"}


# --- Fields ---------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_numbers_to_contracts() -> None:
    for value in ({"n": np.int64(7)}, pd.Series({"n": 7}), {"n": np.array(7)}, {"n": pa.scalar(7)}):
        assert dispatch(value, "{result.n: {gt: 6}}").findings
        assert not dispatch(value, "{result.n: {gt: 7}}").findings
    assert dispatch({"rows": [{"n": np.float32(7)}]}, "{'result.rows[*].n': {gt: 6}}").findings


def test_columns_are_fields() -> None:
    frame = pd.DataFrame({"ssn": ["a", "x"], "other": ["b", "a"]})
    outcome = dispatch(frame, "{'result.ssn[*]': {contains: a}}")
    assert outcome.value["ssn"].tolist() == ["[REDACTED]", "x"]
    assert outcome.value["other"].tolist() == ["b", "a"]
    assert dispatch(np.array(["a", "b"]), "{'result[*]': {contains: b}}").value.tolist() == [
        "a",
        "[REDACTED]",
    ]
    assert dispatch(frame, "{result.size: {gt: 3}}", "warn").findings, "as attributes are"


def test_a_contract_in_python_with_a_redaction_of_its_own() -> None:
    def drop_notes(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.drop(columns="note") if "note" in frame else frame

    @postcondition("t", effect="redact", redact=drop_notes)
    def no_notes(call: Any, frame: pd.DataFrame) -> Verdict:
        return Verdict.fail("m")

    guard = Edictum(contracts=[no_notes])
    shown = guard.run_sync("t", {}, lambda: pd.DataFrame({"n": [1], "note": ["x"]}))
    assert list(shown.columns) == ["n"]
    assert guard.run_sync("t", {}, lambda: pd.DataFrame({"n": [1]})) == SUPPRESSED


def test_the_guards_own_redaction() -> None:
    @postcondition("t", effect="redact")
    def no_secrets(call: Any, frame: pd.DataFrame) -> Verdict:
        return Verdict.fail("m")

    guard = Edictum(contracts=[no_secrets])
    shown = guard.run_sync("t", {}, lambda: pd.DataFrame({"x": [TOKEN], "password": ["p"]}))
    assert shown.to_dict("list") == {"x": ["[REDACTED]"], "password": ["[REDACTED]"]}


# --- What the model and the audit read ------------------------------------------------------------

CSV = '[2 rows, 3 columns]\nid,note,at\n1,"a, ""b""",2026-01-02T00:00:00\n2,,\n'
SHOWN: dict[str, tuple[Any, Any]] = {
    "whole number": (np.int64(3), 3),
    "fraction": (np.float32(0.5), 0.5),
    "flag": (np.bool_(True), True),
    "text": (np.str_("x"), "x"),
    "not a number": (np.float64("nan"), "nan"),
    "time": (np.datetime64("2026-01-02T03:04:05.000000000"), "2026-01-02T03:04:05.000000000"),
    "beyond Python's": (np.longdouble("0.5"), "0.5"),
    "complex": (np.array([1 + 2j]), ["(1+2j)"]),
    "array": (np.array([1, 2]), [1, 2]),
    "rows": (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "one value": (np.array(3), 3),
    "long array": (np.arange(2000), list(range(2000))),
    "masked": (np.ma.array([1, 2], mask=[False, True]), [1, None]),
    "series": (pd.Series([1, 2]), [1, 2]),
    "row": (pd.Series({"a": 1, "b": "x"}), {"a": 1, "b": "x"}),
    "series with a name": (pl.Series("n", [1, 2]), "[2 rows, 1 columns]\nn\n1\n2\n"),
    "labels": (
        pd.DataFrame({"n": [1]}, index=["a"]),
        "[1 rows, 2 columns]\nindex,n\na,1\n",
    ),
    "cells with structure": (
        pl.DataFrame({"n": [[1, 2]]}),
        '[1 rows, 1 columns]\nn\n"[1, 2]"\n',
    ),
    "frame": (
        pd.DataFrame(
            {"id": [1, 2], "note": ['a, "b"', None], "at": [pd.Timestamp(2026, 1, 2), pd.NaT]}
        ),
        CSV,
    ),
    "no rows": (pd.DataFrame(), "[0 rows, 0 columns]\n\n"),
    "arrow": (pa.table({"n": [1]}), "[1 rows, 1 columns]\nn\n1\n"),
    "arrow array": (pa.array([1, None]), [1, None]),
    "index": (pd.Index(["a"]), ["a"]),
}


@pytest.mark.parametrize(("value", "shown"), SHOWN.values(), ids=SHOWN)
def test_what_the_model_reads(value: Any, shown: Any) -> None:
    outcome = Edictum().dispatch_sync("t", {}, lambda: value)
    assert json.loads(outcome_to_model_content(outcome)) == {"result": shown}


def test_the_audit_shows_the_beginning_of_a_frame_and_no_half_of_a_secret() -> None:
    """A frame's own text cuts a long cell in the middle, and half a secret looks like none."""
    frame = pd.DataFrame({"note": [f"{'x' * 20} {TOKEN}"] * 3, "password": ["p"] * 3})
    guard = Edictum()
    guard.run_sync("t", {}, lambda: {"frame": frame, "n": np.int64(3), "one": np.array(3)})
    summary = guard.local_sink.events[-1].result_summary
    cell = f"{'x' * 20} [REDACTED]"
    assert json.loads(summary) == {
        "frame": {"note": [cell] * 3, "password": "[REDACTED]"},
        "n": 3,
        "one": 3,
    }


def test_arguments_are_written_by_column() -> None:
    guard = Edictum()
    frame = pd.DataFrame({"password": ["hunter2"], "n": [np.int64(1)]})
    guard.run_sync("t", {"frame": frame}, lambda frame: 1)
    assert guard.local_sink.events[0].tool_args == {"frame": {"password": "[REDACTED]", "n": [1]}}


# --- The same value? ------------------------------------------------------------------------------


def test_frames_that_differ_in_the_middle_are_not_the_same() -> None:
    for make in MAKERS.values():
        one, other = make(texts_with("x")), make(texts_with("y"))
        assert is_same(one, make(texts_with("x")))
        assert not is_same(one, other)
        assert digest(one) != digest(other)
    assert not is_same(Opaque(), Opaque())


# --- Against a plain search -----------------------------------------------------------------------

CELLS = st.one_of(
    st.sampled_from([SSN, f"a {SSN} b", "x", "", 'say "y"', "line\nend", "é"]),
    st.integers(-5, 5),
    st.none(),
    st.floats(allow_nan=False, width=16),
)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=150))
def test_a_frame_is_redacted_cell_by_cell(rows: list[tuple[Any, Any]]) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b"], dtype=object)
    expected = [
        [cell.replace(SSN, "[REDACTED]") if isinstance(cell, str) else cell for cell in row]
        for row in rows
    ]
    outcome = dispatch(frame)
    assert outcome.value.to_numpy(dtype=object).tolist() == expected
    assert bool(outcome.findings) == any(SSN in str(cell) for row in rows for cell in row)


def test_no_library_is_imported() -> None:
    code = (
        "import sys, edictum; g = edictum.Edictum(); g.run_sync('t', {}, lambda: [object()]);"
        "print([n for n in ('numpy', 'pandas', 'polars', 'pyarrow', 'attrs') if n in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "[]\n"
