"""What looking for secrets costs: text without findings, and a governed call with an audit file.

    python benchmarks/bench_secrets.py [--quick]

The measure for text is one RE2 search of the table's own forms, as one alternation, over the same
text: nothing that uses these forms can be much faster. Systems take turns, in CPU time.
"""

from __future__ import annotations

import argparse
import base64
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import re2
from tables import Sample, by_best, by_median, print_table

from edictum import Edictum, FileAuditSink, OperationLimits, RedactionPolicy
from edictum.core.secret_forms import FormPart, read_form, read_forms
from edictum.core.secret_scan import (
    Detector,
    Finder,
    Heads,
    NextPlace,
    form_row,
    secret_detector,
    use_finder,
)
from edictum.redaction import detector
from edictum.redaction._engine import make_finder

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


REPEATED = ("A", "M", "key=", "token:", "sk-", "%41", "AAAA+/", "token: ", "`cookie=", "key:<")


def measure_repetition(turns: int) -> list[tuple[str, ...]]:
    """Texts in which a secret might begin at each word or character, against ordinary text."""
    size, scan = 100_000, secret_detector().scan
    drawn = base64.b64encode(random.Random(1).randbytes(size)).decode()
    texts = {repr(unit): (unit * size)[:size] for unit in REPEATED} | {"base64": drawn[:size]}
    ordinary, samples = Sample(), {name: Sample() for name in texts}
    for turn in range(turns + 1):
        plain = seconds(partial(scan, make_text(size)), 10)
        spent = {name: seconds(partial(scan, text), 1) for name, text in texts.items()}
        if turn:  # before that, what all searches use is made
            ordinary.seconds.append(plain)
            for name, sample in samples.items():
                sample.seconds.append(spent[name])
    return [
        ("100 KB of the same", "all secrets", "/ ordinary"),
        ("ordinary", ordinary.text(), ""),
        *((name, each.text(), by_median(each, ordinary)) for name, each in samples.items()),
    ]


CALLS = 10  # in a batch: short, so that both sides of a pair meet the same machine
WEEKS = 1_000


def make_arguments(week: int) -> dict[str, object]:
    """About 200 bytes, others in each call: what is remembered of a text does not count."""
    return {
        "path": f"/srv/reports/2026/november/summary-of-the-week-{week}.md",
        "query": f"select name, amount from invoices where amount > {week} order by name",
        "note": f"please keep the order of the {week} rows and say how many there are in all",
        "limit": 50,
    }


ARGUMENTS = [make_arguments(week) for week in range(WEEKS)]


def make_guard(path: Path, detects: bool) -> Edictum:
    return Edictum(
        audit_sink=FileAuditSink(path),
        redaction=RedactionPolicy(detect_secret_values=detects),
        limits=OperationLimits(max_attempts=10**9, max_tool_calls=10**9),
    )


def measure_calls(pairs: int) -> list[tuple[str, ...]]:
    """A call with 200 bytes of arguments and an audit file, with and without the search.

    Writing a file takes now more, now less, by more than what is measured. So small batches take
    turns in random order, all on one file system, and what counts is the difference within a turn.
    Two guards without the search tell what the measure itself is worth.
    """
    lot = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        guards = [make_guard(Path(folder) / f"{n}.jsonl", detects=n == 2) for n in range(3)]
        samples = [Sample(), Sample(), Sample()]
        for turn in range(pairs + 20):
            batch = lot.sample(ARGUMENTS, CALLS)
            for number in lot.sample(range(3), 3):
                spent = seconds(partial(_call_each, guards[number], batch), 1) / CALLS
                if turn >= 20:
                    samples[number].seconds.append(spent)
    without, again, with_search = samples
    return [
        ("a call, 200 bytes of arguments, audit file", "per call", "more", "best, more"),
        ("without the search", without.middle(), "", ""),
        ("the same again", again.middle(), *_more(again, without)),
        ("with it", with_search.middle(), *_more(with_search, without)),
    ]


def _call_each(guard: Edictum, batch: list[dict[str, object]]) -> None:
    for arguments in batch:
        guard.run_sync("t", arguments, _tool)


def _more(one: Sample, other: Sample) -> tuple[str, str]:
    return one.minus(other).middle(), f"{(one.best - other.best) * 1e6:.2f}"


def measure_search_alone(turns: int) -> list[tuple[str, ...]]:
    """The search of exactly the texts that one such call has searched, and nothing else."""
    rows: list[tuple[str, ...]] = [("texts that one call has searched", "characters", "alone")]
    for text in record_searches():
        sample = Sample()
        for _ in range(turns * 20):
            sample.seconds.append(seconds(partial(secret_detector().may_find, text), 500))
        rows.append((f"{text[:40]!r} ...", str(len(text)), sample.middle()))
    return rows


def record_searches() -> list[str]:
    """Return the texts that a call with an audit file has searched."""
    searched: list[str] = []

    def make(heads: Heads) -> Finder:
        find = make_finder(heads)

        def find_and_record(text: str, /) -> NextPlace | None:
            searched.append(text)
            return find(text)

        return find_and_record

    use_finder(make)
    try:
        with tempfile.TemporaryDirectory() as folder:
            guard = make_guard(Path(folder) / "audit.jsonl", detects=True)
            _call_each(guard, ARGUMENTS[:1])  # names and reasons are searched once
            searched.clear()
            _call_each(guard, ARGUMENTS[1:2])
    finally:
        use_finder(make_finder)
    return searched


def _tool(**_arguments: object) -> str:
    return "7 rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options, _ = parser.parse_known_args()
    turns, scale, pairs = (2, 0.1, 20) if options.quick else (9, 1.0, 3_000)
    print("Looking for secrets, microseconds of CPU time: median (min..max). No text holds any.")
    print_table(measure_texts(turns, scale))
    print()
    print_table(measure_repetition(turns))
    print()
    print("The same unit: median (lower..upper quartile); more: of the differences within a turn.")
    print_table(measure_calls(pairs))
    print()
    print_table(measure_search_alone(turns))


if __name__ == "__main__":
    main()
