"""Arrays, series, frames and tables of numpy, pandas, polars, pyarrow and the like as plain values.

They are read whole: ``str()`` of such a value leaves out the middle. No library is imported; the
type of a value is recognised by its methods.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

NOT_OPENED: Any = object()


class NotReadableError(ValueError):
    """A value is an array or a table of an unknown library, or cannot be read whole."""

    is_for_model = True

    def __init__(self, value: object) -> None:
        super().__init__(
            f"a value of type {type(value).__name__} cannot be read whole, so it cannot be"
            " searched; return plain values, or a frame of pandas, polars or pyarrow"
        )


class Table:
    """The columns of a frame: their names, and as many lists of cells.

    The first ``labels`` of them are the row labels of a frame of pandas.
    """

    __slots__ = ("columns", "labels", "names")

    def __init__(
        self, names: Iterable[Any], columns: Iterable[Sequence[Any]], labels: int = 0
    ) -> None:
        self.names = [str(name) for name in names]
        self.columns = [list(column) for column in columns]
        self.labels = labels

    @property
    def rows(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def by_name(self) -> dict[str, list[Any]]:
        """Return the cells by the names of their columns. A repeated name is numbered, and missing
        cells are None.
        """
        made: dict[str, list[Any]] = {}
        for name, column in zip(self.names, self.columns, strict=True):
            unique, number = name, 1
            while unique in made:
                number += 1
                unique = f"{name} ({number})"
            made[unique] = _mark_missing(column)
        return made

    def to_text(self, write: Callable[[Any], Any]) -> str:
        """Return the size in the first line, then the table as CSV; missing cells are empty."""
        lines = _Lines()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(self.names)
        for row in zip(*self.columns, strict=True):
            writer.writerow([None if is_missing(cell) else write(cell) for cell in row])
        return f"[{self.rows} rows, {len(self.names)} columns]\n{''.join(lines)}"


class _Lines(list[str]):
    __slots__ = ()
    write = list.append


MISSING_KINDS = frozenset({"NAType", "NaTType"})


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty: None, NaN, or what pandas has in their place."""
    if type(cell) is float:
        return cell != cell
    return cell is None or type(cell).__name__ in MISSING_KINDS


def _mark_missing(cells: list[Any]) -> list[Any]:
    """Return cells with None for those that are missing; a list without any is returned itself."""
    if not any(kind is float or kind.__name__ in MISSING_KINDS for kind in set(map(type, cells))):
        return cells
    return [None if is_missing(cell) else cell for cell in cells]


# --- Reading --------------------------------------------------------------------------------------


def open_value(value: Any) -> Any:
    """Return a value of a data library as a Table, a dict, a list or a scalar, with nothing left
    out; NOT_OPENED for any other value. Raises NotReadableError.
    """
    form = _find_form(value)
    if form is None:
        return NOT_OPENED
    try:
        opened = _READERS[form](value)
    except Exception as exc:
        raise NotReadableError(value) from exc
    return str(value) if type(opened) is type(value) else opened  # a number beyond Python's


def _read_frame(frame: Any) -> Table:
    names, columns = _read_labels(frame.index)
    parts = [frame.iloc[:, number].tolist() for number in range(len(frame.columns))]
    return Table([*names, *frame.columns], [*columns, *parts], labels=len(names))


def _read_labels(index: Any) -> tuple[list[Any], list[list[Any]]]:
    """Return the names and labels of each level of an index; nothing for an index that only numbers
    the rows.
    """
    if type(index).__name__ == "RangeIndex":
        return [], []
    names = ["index" if name is None else name for name in index.names]
    return names, [index.get_level_values(level).tolist() for level in range(index.nlevels)]


def _read_series(series: Any) -> Any:
    """Return a list, if there are no labels; a dict of labels that are text; or else a Table."""
    cells = series.tolist()
    names, labels = _read_labels(series.index)
    if not names and series.name is None:
        return cells
    if len(labels) == 1 and set(map(type, labels[0])) == {str}:
        by_label = dict(zip(labels[0], cells, strict=True))
        if len(by_label) == len(cells):
            return by_label
    name = "value" if series.name is None else series.name
    return Table([*names, name], [*labels, cells], labels=len(names))


def _read_columns(frame: Any) -> Table:
    columns = frame.get_columns()
    return Table([column.name for column in columns], [column.to_list() for column in columns])


def _read_named_list(series: Any) -> Any:
    return Table([series.name], [series.to_list()]) if series.name else series.to_list()


def _read_arrow(table: Any) -> Table:
    return Table(table.column_names, [column.to_pylist() for column in table.columns])


def _read_array(array: Any) -> Any:
    """Return nested lists or a number; the fields of a structured array by their names."""
    names = getattr(array.dtype, "names", None)
    if names:
        return {name: array[name].tolist() for name in names}
    kind = getattr(array.dtype, "kind", None)
    if kind in ("m", "M"):  # as numbers they would lose their unit
        return array.astype(str).tolist()
    if kind in ("O", "U", "S", "T") and hasattr(type(array), "mask"):
        raise NotReadableError(array)  # texts under the mask would not be seen
    return array.tolist()


def _refuse(value: Any) -> Any:
    raise NotReadableError(value)


# By what the type itself has: the first row of which it has everything.
_READERS: dict[tuple[str, ...], Callable[[Any], Any]] = {
    ("iloc", "columns", "index"): _read_frame,
    ("iloc", "index", "tolist"): _read_series,
    ("get_columns", "with_columns"): _read_columns,
    ("to_list", "dtype", "to_arrow"): _read_named_list,
    ("column_names", "columns", "schema"): _read_arrow,
    ("to_pylist",): lambda array: array.to_pylist(),
    ("as_py",): lambda scalar: scalar.as_py(),
    ("tolist", "dtype"): _read_array,
    # What says that it is an array or a table, and is none of those above.
    ("__array__",): _refuse,
    ("__dataframe__",): _refuse,
    ("__arrow_c_stream__",): _refuse,
    ("__arrow_c_array__",): _refuse,
}


def open_beginning(value: Any, rows: int) -> Any:
    """Return what ``open_value`` returns for the first rows of a value."""
    form = _find_form(value)
    if form is None:
        return NOT_OPENED
    try:
        part = value.iloc[:rows] if "iloc" in form else value[:rows]
    except Exception:  # not of rows
        part = value
    return open_value(part)


def count_parts(value: Any) -> int:
    """Return how many rows or elements a value of a data library has; 0 for any other value."""
    if _find_form(value) is None:
        return 0
    try:
        size = value.size if type(value).__name__ == "ndarray" else len(value)
    except Exception:  # a scalar, or a type of its own
        return 0
    return int(size)


@lru_cache(maxsize=1_024)
def _find_form_of_type(kind: type[Any]) -> tuple[str, ...] | None:
    return next((form for form in _READERS if all(hasattr(kind, name) for name in form)), None)


def _find_form(value: Any) -> tuple[str, ...] | None:
    kind: Any = type(value)
    return _find_form_of_type(kind)


# --- Writing --------------------------------------------------------------------------------------


def replace_cells(value: Any, opened: Any, changed: Any) -> Any:
    """Return a copy of the same type with the contents ``changed`` in place of those that
    ``open_value`` returned; NOT_OPENED when a copy cannot be made.
    """
    write = _WRITERS.get(_find_form(value) or ())
    try:
        return NOT_OPENED if write is None else write(value, opened, changed)
    except Exception:  # such as a text in a column that takes numbers only
        return NOT_OPENED


def is_changed(cells: Sequence[Any], made: Sequence[Any]) -> bool:
    """Return whether any cell was replaced; what is left alone is the same object, or equal."""
    if all(map(is_, cells, made)):
        return False
    return any(
        new is not old and not (type(new) is type(old) and type(new) in _COMPARED and new == old)
        for old, new in zip(cells, made, strict=True)
    )


_COMPARED = frozenset({str, bytes, list, tuple, dict})  # what a walk makes anew


def _write_frame(frame: Any, before: Table, changed: Table) -> Any:
    made, first = frame.copy(), changed.labels
    for number, cells in enumerate(changed.columns[first:]):
        if is_changed(before.columns[first + number], cells):
            made.isetitem(number, _make_alike(frame.iloc[:, number], cells))
    if changed.names[first:] != before.names[first:]:
        made.columns = changed.names[first:]
    if not _has_same_labels(before, changed):
        if first > 1 or changed.names[:first] != before.names[:first]:
            return NOT_OPENED
        made.index = type(made.index)(changed.columns[0], name=made.index.name)
    return made


def _has_same_labels(before: Table, changed: Table) -> bool:
    first = changed.labels
    replaced = any(map(is_changed, before.columns[:first], changed.columns[:first]))
    return not replaced and before.names[:first] == changed.names[:first]


def _make_alike(series: Any, cells: list[Any], **others: Any) -> Any:
    """Return a series with other cells. A series of objects stays one, so that None does not become
    NaN.
    """
    dtype = series.dtype if series.dtype == object else None
    return type(series)(cells, dtype=dtype, **{"index": series.index, "name": series.name} | others)


def _write_series(series: Any, before: Any, changed: Any) -> Any:
    labels = series.index
    if isinstance(changed, dict):
        cells = list(changed.values())
        labels = labels if list(changed) == labels.tolist() else list(changed)
        return _make_alike(series, cells, index=labels)
    if not isinstance(changed, Table):
        return _make_alike(series, changed)
    if not _has_same_labels(before, changed):
        return NOT_OPENED
    name = series.name if before.names == changed.names else changed.names[-1]
    return _make_alike(series, changed.columns[-1], name=name)


def _write_columns(frame: Any, before: Table, changed: Table) -> Any:
    made = []
    for number, column in enumerate(frame.get_columns()):
        name, cells = changed.names[number], changed.columns[number]
        if is_changed(before.columns[number], cells):
            made.append(type(column)(name, cells, dtype=column.dtype))
        else:
            made.append(column.alias(name))
    return type(frame)(made)


def _write_named_list(series: Any, before: Any, changed: Any) -> Any:
    if isinstance(changed, Table):
        return type(series)(changed.names[0], changed.columns[0], dtype=series.dtype)
    return type(series)("", changed, dtype=series.dtype)


def _write_arrow(table: Any, before: Table, changed: Table) -> Any:
    made = table
    for number, cells in enumerate(changed.columns):
        if is_changed(before.columns[number], cells):
            schema = table.select([number]).schema
            part = type(table).from_pydict({schema.names[0]: cells}, schema=schema)
            made = made.set_column(number, schema.field(0), part.column(0))
    return made.rename_columns(changed.names)


def _write_array(array: Any, before: Any, changed: Any) -> Any:
    if array.dtype.kind not in "OUT":
        return NOT_OPENED
    made = array.astype(object)
    made[...] = changed
    return made.astype(str) if array.dtype.kind == "U" else made.astype(array.dtype)


_WRITERS: dict[tuple[str, ...], Callable[[Any, Any, Any], Any]] = {
    ("iloc", "columns", "index"): _write_frame,
    ("iloc", "index", "tolist"): _write_series,
    ("get_columns", "with_columns"): _write_columns,
    ("to_list", "dtype", "to_arrow"): _write_named_list,
    ("column_names", "columns", "schema"): _write_arrow,
    ("tolist", "dtype"): _write_array,
}
