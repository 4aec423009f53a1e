"""What a chained audit file costs: events per second with and without the chain, and verified.

    python benchmarks/bench_audit.py [--quick]

Calls are governed, 64 at once, and leave two events each. Both files are written in turns; ratios
are of CPU time, and of the time on the clock, which a busy machine moves.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tables import Sample, print_table

from edictum import AuditEvent, Edictum, FileAuditSink
from edictum.audit import Chain, generate_key, verify

AT_ONCE = 64
FSYNC: dict[str, Any] = {"without fsync": False, "fsync in batches": "batch"}


@dataclass
class Timed:
    """Seconds per event: of the processor and on the clock."""

    cpu: Sample = field(default_factory=Sample)
    clock: Sample = field(default_factory=Sample)

    def measure(self, run: Callable[[], int]) -> None:
        """Run something that returns how many events it wrote or read."""
        started, busy = time.perf_counter(), time.process_time()
        count = run()
        self.cpu.seconds.append((time.process_time() - busy) / count)
        self.clock.seconds.append((time.perf_counter() - started) / count)

    def per_second(self) -> str:
        return f"{1 / self.cpu.median:,.0f} ({1 / self.clock.median:,.0f})"


def compare(chained: Timed, plain: Timed) -> str:
    """Return the speed with the chain in percent of that without: CPU time (clock)."""
    cpu = _median(plain.cpu, chained.cpu)
    clock = _median(plain.clock, chained.clock)
    return f"{cpu:.0%} ({clock:.0%})"


def _median(one: Sample, other: Sample) -> float:
    ratios = sorted(a / b for a, b in zip(one.seconds, other.seconds, strict=True))
    return ratios[len(ratios) // 2]


def make_calls(sink: FileAuditSink, count: int) -> int:
    """Make governed calls, some at once; return how many events they left."""
    guard = Edictum(audit_sink=sink, local_events=0)
    calls = iter(range(count))

    async def call_in_turn() -> None:
        for number in calls:
            arguments = {"to": "ada@example.org", "subject": "hello", "number": number}
            await guard.run("send_mail", arguments, _send, session_id=str(number))

    async def call_all() -> None:
        await asyncio.gather(*(call_in_turn() for _ in range(AT_ONCE)))

    asyncio.run(call_all())
    return 2 * count


async def _send(**_arguments: object) -> str:
    return "sent"


def write_events(sink: FileAuditSink, events: list[AuditEvent]) -> int:
    """Give a sink events, and wait at last until all are written."""

    async def write_all() -> None:
        for pending in [sink.emit(event) for event in events]:
            await pending

    asyncio.run(write_all())
    return len(events)


def measure_writing(folder: Path, turns: int, calls: int) -> list[tuple[str, ...]]:
    headings = ("without chain", "with chain", "with / without")
    rows: list[tuple[str, ...]] = [("events/s of CPU time (of the clock)", *headings)]
    events = [
        AuditEvent(tool_name="send_mail", tool_args={"number": number}) for number in range(calls)
    ]
    ways: dict[str, Callable[[FileAuditSink], int]] = {
        "governed calls": lambda sink: make_calls(sink, calls),
        "the sink alone": lambda sink: write_events(sink, events),
    }
    for (name, run), (how, fsync) in product(ways.items(), FSYNC.items()):
        plain, chained = Timed(), Timed()
        for turn in range(turns):
            for timed, chain in ((plain, False), (chained, Chain(key=folder / "key"))):
                path = folder / f"{name}-{how}-{turn}-{chain is not False}"
                sink = FileAuditSink(path, fsync=fsync, chain=chain)
                timed.measure(partial(run, sink))
                sink.close()
        figures = (plain.per_second(), chained.per_second(), compare(chained, plain))
        rows.append((f"{name}, {how}", *figures))
    return rows


def measure_verifying(folder: Path, turns: int, count: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("records/s of CPU time (of the clock)", "verified")]
    for title, options in {"plain file": {}, "rotated and compressed": {"compress": True}}.items():
        path, timed = folder / f"{title}.jsonl", Timed()
        more: Any = options | {"max_bytes": 4_000_000, "keep": 10_000}
        sink = FileAuditSink(path, chain=Chain(key=folder / "key"), **more)
        write_events(sink, [AuditEvent(tool_name="t", tool_args={"n": n}) for n in range(count)])
        sink.close()
        for _ in range(turns):
            timed.measure(partial(_verify, path, folder))
        rows.append((title, timed.per_second()))
    return rows


def _verify(path: Path, folder: Path) -> int:
    found = verify(path, public_key=folder / "key.pub")
    assert found.ok, found.problems
    return found.records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options, _ = parser.parse_known_args()
    turns, scale = (2, 0.1) if options.quick else (9, 1.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate_key(folder / "key")
        print(f"A chained audit file, {AT_ONCE} calls at once, a signed head every 1,000 events.")
        print_table(measure_writing(folder, turns, int(2_000 * scale)))
        print()
        print_table(measure_verifying(folder, turns, int(50_000 * scale)))


if __name__ == "__main__":
    main()
