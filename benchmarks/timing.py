"""Loops that time themselves. Standard library only: they run inside the peers' venvs too.

The time is the CPU time of the process (all its threads): what is timed computes and waits for
nothing, and the CPU time of one process does not grow because others want the same core.
"""

import asyncio
import contextlib
import time

ARGS = {"path": "/srv/data/report.txt"}


def tool(path):
    return "contents"


def every(function):
    """A loop that calls ``function()`` n times and returns the seconds it took."""

    def loop(n):
        started = time.process_time()
        for _ in range(n):
            function()
        return time.process_time() - started

    return loop


def every_await(function):
    """As ``every``, for an asynchronous function; the event loop is made once and is not part of
    the time.
    """
    events = asyncio.new_event_loop()

    async def loop(n):
        started = time.process_time()
        for _ in range(n):
            await function()
        return time.process_time() - started

    return lambda n: events.run_until_complete(loop(n))


def both_clocks():
    """CPU time, and the time on the wall for what hands work to threads or waits, in seconds."""
    return time.process_time(), time.perf_counter()


def governed(run):
    """The loop for a guard's ``run(tool_name, args, function)``."""
    return every_await(lambda: run("read_file", ARGS, tool))


def governed_in_short_sessions(run, new_session):
    """As ``governed``, with a new session for every hundred calls: a bundle comes with a limit of
    200 calls per session.
    """
    timed = governed(run)

    def loop(n):
        seconds = 0.0
        for start in range(0, n, 100):
            new_session()
            seconds += timed(min(100, n - start))
        return seconds

    return loop


def called_by_nobody(functions, call):
    """The loop for the functions of contracts, called as they are: what they cost without any
    guard.
    """

    def call_all():
        for function in functions:
            function(call)

    return every(call_all)


def plain_call():
    async def call():
        return tool(**ARGS)

    return every_await(call)


def parallel(run, denied, calls=50):
    """How many bodies run when ``calls`` calls are made at once."""
    ran = []

    async def body(path):
        ran.append(path)
        await asyncio.sleep(0.01)
        return "contents"

    async def one():
        with contextlib.suppress(denied):
            await run("read_file", ARGS, body)

    async def all_at_once():
        await asyncio.gather(*(one() for _ in range(calls)))

    asyncio.run(all_at_once())
    return len(ran)
