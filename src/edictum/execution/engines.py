"""Where tools are run, named by a word, a URL or an object. One function reads all three."""

from __future__ import annotations

from typing import Any, TypeGuard

from edictum._optional import import_optional
from edictum.core.effects import Engine, RunIn
from edictum.core.tool_entry import RUN_IN
from edictum.errors import EdictumConfigError

MAX_RESULT_BYTES = 64 << 20  # of a body that runs elsewhere
_HINT = (
    "Use 'inline', 'thread', 'process', 'celery://host:port/0', a Celery app, or an object with"
    " run() and run_sync()."
)


def as_run_in(execution: Any) -> RunIn | Engine:
    """Return what ``Edictum(execution=...)`` means; raise EdictumConfigError for anything else."""
    if execution is None:
        return "inline"
    if is_run_in(execution):
        return execution
    if hasattr(execution, "send_task") or (
        isinstance(execution, str) and execution.startswith(("celery://", "celerys://"))
    ):
        problem = "execution: Celery is not installed."
        engine: Engine = import_optional(
            "edictum.execution.celery", "celery", problem
        ).CeleryEngine(execution)
        return engine
    raise EdictumConfigError(f"execution is {execution!r}.", hint=_HINT)


def is_run_in(value: Any) -> TypeGuard[RunIn | Engine]:
    if isinstance(value, str):
        return value in RUN_IN
    return callable(getattr(value, "run", None)) and callable(getattr(value, "run_sync", None))
