"""The matrix of conformance results, framework x point, from .build/conformance/*.json, or from the
folder that EDICTUM_RESULTS names.

    python frameworks/matrix.py print | write | check

``write`` puts it into docs/adapters/index.md; ``check`` fails when the page says something else
than the results.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(os.environ.get("EDICTUM_RESULTS", ROOT / ".build" / "conformance"))
PAGE = ROOT / "docs" / "adapters" / "index.md"
BEGIN, END = "<!-- from the results of make frameworks -->\n", "<!-- end -->"


def results() -> list[dict[str, Any]]:
    found = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))
    ]
    return sorted(found, key=lambda result: result["framework"].lower())


def cell(tests: dict[str, str]) -> str:
    """yes: every test of the point passed. FAIL: one did not. -: the framework cannot do it. ?: it
    was not run.
    """
    kinds = {said.split(":")[0] for said in tests.values()}
    return "FAIL" if "fail" in kinds else "-" if "dash" in kinds else "yes" if kinds else "?"


def table(found: list[dict[str, Any]]) -> list[list[str]]:
    points = max((result["points"] for result in found), key=len, default=[])
    head = ["", *(result["framework"] for result in found)]
    rows = [
        [point, *(cell(result["results"].get(point, {})) for result in found)] for point in points
    ]
    return [head, ["tested with", *(result["version"] for result in found)], *rows]


def reasons(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for result in found:
        for point in result["points"]:
            said = {
                text
                for text in result["results"].get(point, {}).values()
                if not text.startswith("pass")
            }
            lines += [
                f"{result['framework']}, {point}: {text.partition(': ')[2]}"
                for text in sorted(said)
            ]
    return lines


def markdown(found: list[dict[str, Any]]) -> str:
    rows = table(found)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    notes = [f"- {reason}" for reason in reasons(found)]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def plain(found: list[dict[str, Any]]) -> str:
    rows = table(found)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *reasons(found)])


def page(found: list[dict[str, Any]]) -> str:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}{markdown(found)}{END}{rest.split(END, 1)[1]}"


def main(verb: str) -> int:
    found = results()
    if verb == "print":
        print(plain(found) if found else "No conformance results yet.")
    elif verb == "write":
        PAGE.write_text(page(found), encoding="utf-8")
    elif page(found) != PAGE.read_text(encoding="utf-8"):
        print(
            f"{PAGE.relative_to(ROOT)} does not show these results; run: python"
            " frameworks/matrix.py write"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
