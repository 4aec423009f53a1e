"""What looking for secrets costs: text without findings, and a governed call with an audit file.

    python benchmarks/bench_secrets.py [--quick]

The measure for text is one RE2 search of the table's own forms, as one alternation, over the same
text: nothing that uses these forms can be much faster. Systems take turns, in CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import re2
from tables import Sample, by_best, by_median, print_table

from edictum import Edictum, FileAuditSink, OperationLimits, RedactionPolicy
from edictum.core.secret_forms import FormPart, read_form, read_forms
from edictum.core.secret_scan import Detector, form_row, secret_detector
from edictum.redaction import detector

SIZES = {"1 KB": 1_000, "32 KB": 32_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
LINES = (
    "2026-11-17T20:15:01Z INFO worker-3 handled request 8412 in 31 ms (GET /v1/items?page=2)\n",
    "    for name, value in sorted(settings.items()):  # the order of the file is not kept\n",
    "The quick brown fox jumps over the lazy dog, and the dog does not seem to mind at all.\n",
    '  "resolved": "https://registry.example.org/left-pad/-/left-pad-1.3.0.tgz",\n',
    "commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12 by 6ba7b810-9dad-11d1-80b4-00c04fd430c8\n",
)
PERSONAL = ("pii.email", "pii.card", "pii.iban", "pii.ip", "pii.mac", "pii.us_ssn")


def make_text(size: int) -> str:
    return ("".join(LINES) * (size // sum(map(len, LINES)) + 1))[:size]


def alternation() -> Callable[[bytes], object]:
    """One RE2 search for all forms of the table, each as it is documented."""
    options = re2.Options()
    options.max_mem = 64 << 20
    options.never_capture = True
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    forms = ("".join(map(_bounded, read_form(form.text))) for form in read_forms())
    return re2.compile("|".join(forms).encode(), options).search


def _bounded(part: FormPart) -> str:
    """The pattern of a part; RE2 repeats at most a thousand times, and more says nothing more."""
    if not part.alphabet or part.alphabet == "uuid":
        return part.pattern
    return part.pattern.rsplit("{", 1)[0] + f"{{{part.least}}}"


def seconds(function: Callable[[], object], repetitions: int) -> float:
    started = time.process_time()
    for _ in range(repetitions):
        function()
    return (time.process_time() - started) / repetitions


def measure_texts(turns: int, scale: float) -> list[tuple[str, ...]]:
    search, whole = alternation(), secret_detector()
    vendors, personal = Detector(map(form_row, read_forms())), detector(*PERSONAL)
    headings = ("one RE2 search", "vendor table", "/ it", "best", "all secrets", "/ it")
    rows: list[tuple[str, ...]] = [("text", *headings, "personal data", "/ it")]
    for name, size in SIZES.items():
        text = make_text(int(size * (scale if size > 100_000 else 1)))
        data = text.encode()
        assert whole.scan(text) == []
        systems: list[tuple[Sample, Callable[[], object]]] = [
            (Sample(), lambda data=data: search(data)),
            (Sample(), lambda text=text: vendors.scan(text)),
            (Sample(), lambda text=text: whole.scan(text)),
            (Sample(), lambda text=text: personal.scan(text)),
        ]
        repetitions = max(1, 200_000 // len(text))
        for _ in range(turns):
            for sample, function in systems:
                sample.seconds.append(seconds(function, repetitions))
        one, table, every, people = (sample for sample, _ in systems)
        figures = (one.text(), table.text(), by_median(table, one), by_best(table, one))
        others = (every.text(), by_median(every, one), people.text(), by_median(people, one))
        rows.append((name, *figures, *others))
    return rows


ARGUMENTS = {
    "path": "/srv/reports/2026/november/summary-of-the-week.md",
    "query": "select name, amount from invoices where amount > 100 order by name",
    "note": "please keep the order of the rows and say how many there are in all",
    "limit": 50,
}


def measure_calls(turns: int, scale: float) -> list[tuple[str, ...]]:
    """A call with 200 bytes of arguments and an audit file, with and without the search."""
    with tempfile.TemporaryDirectory() as folder:
        guards = [
            Edictum(
                audit_sink=FileAuditSink(Path(folder) / f"{number}.jsonl"),
                redaction=RedactionPolicy(detect_secret_values=number == 1),
                limits=OperationLimits(max_attempts=10**9, max_tool_calls=10**9),
            )
            for number in range(2)
        ]
        samples = [Sample(), Sample()]
        for _ in range(turns * 3):
            for guard, sample in zip(guards, samples, strict=True):
                run = partial(guard.run_sync, "t", ARGUMENTS, _tool)
                sample.seconds.append(seconds(run, int(400 * scale)))
    without, with_search = samples
    more = with_search.minus(without)
    return [
        ("a call, 200 bytes of arguments, audit file", "without", "with", "more"),
        ("run_sync, CPU time", without.text(), with_search.text(), more.text()),
    ]


def _tool(**_arguments: object) -> str:
    return "7 rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options, _ = parser.parse_known_args()
    turns, scale = (2, 0.1) if options.quick else (9, 1.0)
    print("Looking for secrets, microseconds of CPU time: median (min..max). No text holds any.")
    print_table(measure_texts(turns, scale))
    print()
    print_table(measure_calls(turns, scale))


if __name__ == "__main__":
    main()
