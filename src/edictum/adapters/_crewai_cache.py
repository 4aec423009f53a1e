"""CrewAI's cache of results, which agents of a crew share: what it answers reaches neither the tool
nor the guard in it.

CrewAI looks into the cache right after its hooks, in the same context. So a hook notes whether the
call is governed, and a cache has nothing for one that is. What governed tools return is not put
there either (``cache_function``).
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any

# Whether the call that CrewAI is about to make in this context is governed.
GOVERNED: ContextVar[bool] = ContextVar("edictum_crewai_governed", default=False)


def pass_by_cache(context: Any, governed: bool) -> None:
    """For a hook: the call that it was told about is to be run, or may be answered from the cache
    as without us.
    """
    GOVERNED.set(governed)
    cache = getattr(getattr(context.agent, "tools_handler", None), "cache", None)
    if cache is not None:
        silence(type(cache))


def silence(kind: Any) -> None:
    """Have the caches of this class find nothing for governed calls; once is enough."""
    read = kind.read
    if hasattr(read, "minds_the_guard"):
        return

    @functools.wraps(read)
    def read_unless_governed(self: Any, *args: Any, **named: Any) -> Any:
        return None if GOVERNED.get() else read(self, *args, **named)

    vars(read_unless_governed)["minds_the_guard"] = True
    kind.read = read_unless_governed
