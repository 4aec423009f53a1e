"""Several connections of one process to one SQLite file, beside other processes."""

from __future__ import annotations

from pathlib import Path

from edictum import Edictum
from support.processes import run_python

OTHER = """
    import asyncio, json, sys
    from edictum import Edictum

    guard = Edictum(backend=sys.argv[1])
    guard.run_sync("work", {}, lambda: 1, session_id="s")
    counted = guard.session("s").snapshot().totals.executions
    asyncio.run(guard.close())
    print(json.dumps(counted))
"""


async def test_a_second_connection_does_not_let_go_of_the_first(tmp_path: Path) -> None:
    """A process that opens and closes the file must know that others have it open: it would delete
    the log into which they write, and calls would not be counted.
    """
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = Edictum(backend=url)
    first.run_sync("work", {}, lambda: 1, session_id="s")
    second = Edictum(backend=url)
    assert run_python(OTHER, url) == 2
    first.run_sync("work", {}, lambda: 1, session_id="s")
    second.run_sync("work", {}, lambda: 1, session_id="s")
    assert run_python(OTHER, url) == 5
    assert first.session("s").snapshot().totals.executions == 5
    await first.close()
    await second.close()
