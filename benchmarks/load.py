"""Calls made one after the other or many at once, timed on both clocks. Standard library only."""

import asyncio
import itertools
import os

from timing import both_clocks

AT_ONCE = (1, 100)
SESSIONS = 20  # that the calls at once share
FOLDER, VALKEY, POSTGRES = "BENCH_FOLDER", "BENCH_VALKEY", "BENCH_POSTGRES"  # in the environment

_files = itertools.count()


def new_file(suffix):
    """Return a path in the folder of this run that nothing else uses."""
    return f"{os.environ[FOLDER]}/{os.getpid()}-{next(_files)}.{suffix}"


def session_ids():
    """Return a function that gives the next session in turn."""
    names = itertools.cycle([f"{os.getpid()} {number}" for number in range(SESSIONS)])
    return names.__next__


def under_load(open_call, at_once):
    """Make a case of ``open_call``, a coroutine function that gives what makes one call."""

    def case():
        events = asyncio.new_event_loop()
        call = events.run_until_complete(open_call())
        return lambda n: events.run_until_complete(_spend(call, n, at_once))

    return case


async def _spend(call, n, at_once):
    left = iter(range(n))

    async def calls():
        for _ in left:
            await call()

    cpu, wall = both_clocks()
    await asyncio.gather(*(calls() for _ in range(at_once)))
    cpu_then, wall_then = both_clocks()
    return cpu_then - cpu, wall_then - wall


def cases_of(opened):
    """Return every case at each load, by the name that bench_deployed.py asks for."""
    return {
        f"{name} @{at_once}": under_load(open_call, at_once)
        for name, open_call in opened.items()
        for at_once in AT_ONCE
    }
