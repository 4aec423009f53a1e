"""A report as one HTML page that needs nothing else.

The plots are SVG, drawn here; it has no script, and its content security policy forbids every
request. All texts of the log are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from edictum._version import __version__
from edictum.audit._report import CallTally, Report
from edictum.audit._report_tables import (
    ReportTable,
    count_successes,
    escape_hidden,
    find_numeric,
    format_cell,
    format_period,
    format_share,
    list_tables,
)

MAX_PAGE_ROWS = 50
MAX_BARS = 12
DAY_MS = 86_400_000
PLOT_WIDTH, PLOT_HEIGHT, AXIS = 960, 200, 46
LABEL_WIDTH = 90  # of a moment below the bars
# Outcomes as the plots stack them: successes below, failures on top.
SERIES = {
    "executed": "succeeded",
    "artifact": "succeeded, as an artifact",
    "denied": "denied",
    "failed": "failed",
    "timeout": "timed out",
}


def write_report_page(report: Report, title: str) -> str:
    """Return the page."""
    style = resources.files("edictum.audit").joinpath("report.css").read_text(encoding="utf-8")
    parts = [
        _write_head(report, title),
        _write_tiles(report),
        _write_problems(report),
        _write_section("Calls over time", _draw_timeline(report) + _write_legend(report)),
        _write_section("Tools", _draw_tools(report.tools.sort())),
        *(_write_table(table.shorten(MAX_PAGE_ROWS)) for table in list_tables(report)[1:]),
        f"<footer>edictum {escape(__version__)}. This page is complete: it loads nothing.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, parts))
        + "\n</main>\n</body>\n</html>\n"
    )


def _escape(text: Any) -> str:
    return escape(escape_hidden(str(text)))


def _write_head(report: Report, title: str) -> str:
    wanted = ", ".join(
        f"{name}: {value if isinstance(value, str) else ', '.join(value)}"
        for name, value in report.wanted.describe().items()
    )
    asked = f'<p class="asked">Only {_escape(wanted)}</p>' if wanted else ""
    when = format_period(report)
    return f"<header><h1>{_escape(title)}</h1><p>{_escape(when)}</p>{asked}</header>"


def _write_tiles(report: Report) -> str:
    calls, total = report.calls, report.total
    prompts = report.prompts_per_100
    tiles = [
        ("calls", f"{calls:,}", f"{report.events:,} events"),
        ("succeeded", f"{count_successes(total):,}", _share_of(count_successes(total), calls)),
        ("failed", f"{total.failed:,}", f"{format_share(total.failure_rate)} of those that ran"),
        (
            "denied",
            f"{total.outcomes['denied']:,}",
            _share_of(total.outcomes["denied"], calls),
        ),
        (
            "prompts",
            "-" if prompts is None else f"{prompts:.1f}",
            f"per 100 of {report.consequential_calls:,} consequential calls",
        ),
    ]
    cells = (
        f'<div class="tile {name}"><dt>{name}</dt><dd>{value}</dd><p>{_escape(note)}</p></div>'
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _share_of(count: int, calls: int) -> str:
    return f"{format_share(count / calls if calls else None)} of all calls"


def _write_problems(report: Report) -> str:
    if not report.problems:
        return ""
    said = "; ".join(f"{what} ({count:,})" for what, count in report.problems.items())
    return f'<p class="warning"><strong>Not all could be read:</strong> {_escape(said)}.</p>'


def _write_section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _write_table(table: ReportTable) -> str:
    right = find_numeric(table)
    head = "".join(
        f"<th{_mark(index in right)}>{escape(name)}</th>"
        for index, name in enumerate(table.columns)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_mark(index in right)}>{escape(format_cell(cell))}</td>"
            for index, cell in enumerate(row)
        )
        + "</tr>\n"
        for row in table.rows
    )
    note = f'<p class="note">{_escape(table.note)}</p>' if table.note else ""
    content = f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>'
    name = "Figures by tool" if table.title == "Tools" else table.title
    return _write_section(name, f"{content}</table></div>{note}")


def _mark(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


# --- Plots ----------------------------------------------------------------------------------------


def _write_legend(report: Report) -> str:
    shown = [name for name in SERIES if report.outcomes[name]]
    keys = "".join(f'<li class="{name}">{SERIES[name]}</li>' for name in shown)
    return f'<ul class="legend">{keys}</ul>' if shown else ""


def _draw_timeline(report: Report) -> str:
    """Return one bar of stacked outcomes for each bucket of time."""
    buckets = report.timeline.list_buckets()
    if not buckets:
        return ""
    top = _round_up(max(sum(counts.values()) for _, counts in buckets))
    step = (PLOT_WIDTH - AXIS) / max(len(buckets), 12)
    bars = "".join(
        _draw_stack(AXIS + index * step, step, start, counts, top, report.timeline.width_ms)
        for index, (start, counts) in enumerate(buckets)
    )
    return (
        f'<svg class="plot" viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT + 34}" role="img"'
        f' aria-label="Calls over time">{_draw_grid(top)}{bars}'
        f"{_draw_times(buckets, step, report.timeline.width_ms)}</svg>"
    )


def _draw_stack(
    x: float, step: float, start: int, counts: dict[str, int], top: int, width_ms: int
) -> str:
    parts, y = [], float(PLOT_HEIGHT)
    gap = min(step * 0.2, 4)
    for name in SERIES:
        if count := counts.get(name, 0):
            height = (PLOT_HEIGHT - 10) * count / top
            y -= height
            parts.append(
                f'<rect class="{name}" x="{x + gap / 2:.1f}" y="{y:.1f}"'
                f' width="{min(step - gap, 60):.1f}" height="{height:.1f}"/>'
            )
    said = ", ".join(f"{counts[name]:,} {SERIES[name]}" for name in SERIES if counts.get(name))
    moment = _format_start(start, width_ms, with_day=True)
    return f"<g><title>{moment}: {said}</title>{''.join(parts)}</g>" if parts else ""


def _draw_grid(top: int) -> str:
    lines = []
    for share in (0, 0.5, 1) if top > 1 else (0, 1):
        y = PLOT_HEIGHT - (PLOT_HEIGHT - 10) * share
        lines.append(
            f'<line x1="{AXIS}" x2="{PLOT_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{AXIS - 8}" y="{y + 4:.1f}" class="end">'
            f"{format_cell(top * share)}</text>"
        )
    return f'<g class="grid">{"".join(lines)}</g>'


def _draw_times(buckets: Sequence[tuple[int, Any]], step: float, width_ms: int) -> str:
    """Return up to six labels below the bars, with the day if there are several."""
    every = max(1, -(-len(buckets) // 6))
    has_days = buckets[0][0] // DAY_MS != buckets[-1][0] // DAY_MS
    labels = "".join(
        f'<text x="{AXIS + index * step:.1f}" y="{PLOT_HEIGHT + 20}">'
        f"{_format_start(start, width_ms, with_day=has_days)}</text>"
        for index, (start, _) in enumerate(buckets)
        # one that begins too far to the right would be cut off
        if index % every == 0 and AXIS + index * step <= PLOT_WIDTH - LABEL_WIDTH
    )
    return f'<g class="grid">{labels}</g>'


def _format_start(start: int, width_ms: int, *, with_day: bool) -> str:
    try:
        at = datetime.fromtimestamp(start / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # the bucket begins before the year 1
        return ""
    if width_ms >= DAY_MS:
        return f"{at:%Y-%m-%d}"
    clock = f"{at:%H:%M}" if width_ms >= 60_000 else f"{at:%H:%M:%S}"
    if width_ms < 1_000:
        clock += f".{at.microsecond // 10_000:02}"
    return f"{at:%m-%d} {clock}" if with_day else clock


def _round_up(number: int) -> int:
    """Return the next round number, for an axis."""
    magnitude = 1
    while True:
        for factor in (1, 2, 4, 6, 8):
            if number <= factor * magnitude:
                return factor * magnitude
        magnitude *= 10


def _draw_tools(tools: Sequence[tuple[str, CallTally]]) -> str:
    """Return one bar of stacked outcomes for each of the tools that were called most."""
    shown = tools[:MAX_BARS]
    if not shown:
        return ""
    most, rows = max(tally.calls for _, tally in shown), []
    for tool, tally in shown:
        segments = "".join(
            f'<span class="{name}" style="width:{100 * tally.outcomes[name] / most:.2f}%"'
            f' title="{tally.outcomes[name]:,} {SERIES[name]}"></span>'
            for name in SERIES
            if tally.outcomes[name]
        )
        rows.append(
            f'<div class="bar"><span class="name" title="{_escape(tool)}">{_escape(tool)}</span>'
            f'<span class="track">{segments}</span>'
            f'<span class="count">{tally.calls:,}</span></div>'
        )
    left = len(tools) - len(shown)
    note = f'<p class="note">{left:,} more tools are in the table below.</p>' if left else ""
    return f'<div class="bars">{"".join(rows)}</div>{note}'
