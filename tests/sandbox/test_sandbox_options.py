"""Options: what a cluster takes as its value, and which words behind it are paths all the same."""

from __future__ import annotations

import pytest

from edictum.contracts.sandbox._options import Value, values_in

# name -> (opens a file outside, the same program and form with files inside)
PAIRS = {
    "sort": ("sort -Tt /etc/passwd", "sort -rt / x"),
    "grep": ("grep -fe /etc/passwd", "grep -rne /api src"),
    "sed": ("sed -fe /etc/passwd", "sed -ne /start/p x"),
    "sed in place": ("sed s/a/b/ -ie /etc/passwd", "sed -i -e 's#/a#/b#' x"),
    "awk": ("awk -fF /etc/passwd", "awk -F / '{print $2}' x"),
    "awk opens its separator": (
        "awk -F /etc/passwd 'BEGIN{getline l < FS}'",
        "awk -F/ '{print $2}' x",
    ),
    "column": ("column -os /etc/passwd", "column -ts / x"),
    "curl": ("curl -ud file:///etc/passwd", "curl -sd /a localhost"),
    "ripgrep": ("rg -tA x /etc/passwd", "rg -nA 3 /api src"),
    "behind two dashes": ("grep -- -e /etc/passwd", "grep -- -/api x"),
    "behind an operand": ("awk '{print}' -F /etc/passwd", "awk -F / '{print}' x"),
    "message": ("git -C . diff -m /etc/passwd x", "git -C . commit -m 'about /etc'"),
    "attached climb": ("tar -cvf../x a", "tar -cvfx a"),
    "attached absolute": ("curl -sSfLo/etc/x localhost", "curl -sSfLox localhost"),
    "attached target": ("cp -rfvt/etc a", "cp -rfvtsrc a"),
    "attached behind many letters": (
        "cp -vvvvvvvvvvvvvvvvvvvvvvvvvt/etc a",
        "cp -vvvvvvvvvvvvvvvvvvvvvvvvv a b",
    ),
    "attached link": ("tar -cfoutlink/x a", "tar -cf inlink/x a"),
    "compiler": ("gcc -I../include a.c", "gcc -Isrc/include -Lsrc/lib a.c"),
    "compiler beside another program": (
        "find . -exec make {} \\; -exec tar -Icvf/etc/x {} \\;",
        "find . -exec make -Csrc/x {} \\;",
    ),
    "text that xargs replaces": ("cat x | xargs -0I@ sh -c 'cat @'", "cat x | xargs -0I@ cat @"),
    "assignment behind two dashes": ("env -- A=1 sh -c 'cd; cat x'", "env -- A=1 sh -c 'cat x'"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_leaves_is_refused(name: str, in_work) -> None:
    assert in_work(PAIRS[name][0]) is not None


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_form_inside_passes(name: str, in_work) -> None:
    assert in_work(PAIRS[name][1]) is None


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-sSo", "x", "y"], [Value(1, "-o"), Value(2)]),
        (["-so", "-", "-"], [Value(1, "-o"), Value(2)]),
        (["-sox", "y"], [Value(0, "-o", 3), Value(1)]),
        (
            ["--out", "x", "--out=y", "--other", "z"],
            [Value(1, "--out"), Value(2, "--out", 6), Value(4)],
        ),
        (["--", "-o", "x"], [Value(1), Value(2)]),
    ],
    ids=str,
)
def test_values_and_operands(words: list[str], values: list[Value]) -> None:
    assert list(values_in(words, frozenset({"-o", "--out"}))) == values
